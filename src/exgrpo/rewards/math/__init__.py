"""Answers in mathematics: `math_reward` and `strict_math_reward`."""
