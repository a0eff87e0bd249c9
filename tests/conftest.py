"""Settings of all tests: examples that are the same in every run, and one thread."""

import torch
from hypothesis import settings

settings.register_profile("exgrpo", deadline=None, derandomize=True, max_examples=60, database=None)
settings.load_profile("exgrpo")
torch.set_num_threads(1)
