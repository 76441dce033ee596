"""Faults of every kind under load, and what must hold whatever fails: `python -m bench.campaign`.

One module per row (`kill`, `fault`, `fuzz`, `greedy`, `day`); each brings `run`, which gives back its figures and what
was broken. The others are what rows share or consist of: the processes (`plane`), the agents (`node`), what these write
down (`journal`) and what must be true afterwards (`oracle`); those who send too much (`flood`) and those beside them
(`honest`).
"""
