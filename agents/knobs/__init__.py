"""Clocks and power limits: turned only after they are in the journal, and put back from it."""
