"""Observations that the control plane has not yet acknowledged, oldest first."""

from collections import deque
from collections.abc import Callable

from agents.base.protocol import Observation

CAPACITY = 1000
"""Observations kept at most: half an hour at one each 2 s, some 2 MB."""


class Outbox:
    """A bounded buffer; when it is full the oldest observation gives way."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        if capacity < 1:
            raise ValueError(f"capacity {capacity} must be at least 1")
        # The newest matter most: the oldest give way when the control plane cannot be reached for long.
        self._pending: deque[Observation] = deque(maxlen=capacity)
        self.dropped = 0
        """Observations that were given up."""
        self.on_add: Callable[[Observation], None] | None = None
        """Told of every observation, for metrics."""

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, observation: Observation) -> None:
        """Keep an observation until it is acknowledged; their sequence must rise."""
        if len(self._pending) == self._pending.maxlen:
            self.dropped += 1
        self._pending.append(observation)
        if self.on_add is not None:
            self.on_add(observation)

    def oldest(self) -> Observation | None:
        """The next one to send."""
        return self._pending[0] if self._pending else None

    def acknowledge(self, sequence: int) -> None:
        """Forget everything up to this sequence number."""
        while self._pending and self._pending[0].sequence <= sequence:
            self._pending.popleft()

    def discard(self, sequence: int) -> None:
        """Give up one observation that will never be accepted."""
        kept = [each for each in self._pending if each.sequence != sequence]
        self.dropped += len(self._pending) - len(kept)
        self._pending = deque(kept, maxlen=self._pending.maxlen)
