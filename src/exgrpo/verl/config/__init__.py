"""Configurations for verl's command line: `--config-path=pkg://exgrpo.verl.config --config-name=exgrpo`."""
