"""ExGRPO on verl: stock `python -m verl.trainer.main_ppo` with `trainer.v1.trainer_mode=exgrpo`.

verl finds `plugin` by its entry point; nothing has to be imported by hand.
"""
