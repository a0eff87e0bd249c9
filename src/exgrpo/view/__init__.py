"""The page of a run: a local server over a log that is only read, or one file with a part of it.

The log is kept in memory as columns (`columns`, `history`), from which the answers are made (`curves`, `questions`, `question`,
`steps`), so that they take milliseconds at a million trajectories. `server` gives them to the browser, `page` writes them into
a file.
"""
