"""The pure half: numbers in, plan out; no clock, no I/O, no logging. `check` judges every plan, alone."""
