"""The header that says how long the answer to a request may still take; router and workers read it alike."""

import re

DEADLINE = "Plimsoll-Deadline-Ms"
"""Milliseconds that are left for the answer, counted from when the request comes; passed on with what is left then."""
_NUMBER = re.compile(r"-?[0-9]{1,12}(\.[0-9]{0,6})?")


def parse_deadline_ms(text: str) -> float:
    """Milliseconds left; may be 0 or below. Raises ValueError on what is no plain number."""
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{DEADLINE} is {text[:40]!r}; it must be the milliseconds left, like 250")
    return float(text)
