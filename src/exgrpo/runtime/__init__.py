"""What every host shares: one iteration of replay (`step`), a run's experience (`session`), and what surrounds them.

Nothing here imports a host. A host brings a `Comm`, fills a `RunContext`, and calls the methods of a `ReplayStep` in order.
"""
