"""Faults of every kind under load, and what must hold whatever fails: `python -m bench.campaign`.

One module per row: `kill` and `fault` in `faults`, `fuzz` and `greedy` in `floods`, and `day`. Each brings `run`, which
gives back its figures and what was broken. All share the `deployment`; what must hold afterwards is in `oracle`.
"""
