"""Faults of every kind under load, and what must hold whatever fails: `python -m bench.campaign`.

One module per row of faults (`kill`); each brings `run`, which gives back its figures and what was broken. The others
are what rows share: the processes (`plane`), the agents (`node`), what these write down (`journal`) and what must be
true afterwards (`oracle`).
"""
