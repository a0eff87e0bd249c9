"""Experiments with paired arms on equal budgets, from a study file to tables and pictures."""
