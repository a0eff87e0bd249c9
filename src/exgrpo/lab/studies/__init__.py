"""Studies: presets against each other on tiny policies, with seeds and intervals."""
