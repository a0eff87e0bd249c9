"""Slow, plain implementations of the method, written from its description. The fast ones must agree with them."""
