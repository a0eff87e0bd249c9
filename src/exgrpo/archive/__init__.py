"""Logs as files: verify, prune, fork, merge, export and import."""
