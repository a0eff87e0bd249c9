"""The runtime that every host shares: one iteration (`step`), a run's experience (`session`), and their surroundings.

Nothing here imports a host. A host brings a `Comm`, fills a `RunContext`, and calls the methods of a `ReplayStep` in order.
"""
