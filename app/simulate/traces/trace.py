"""The trace: arrival rates of several series in even steps, such as the services of one simulation."""

from dataclasses import dataclass, replace

import numpy as np

from agents.sim.load.rates import TraceShape
from app.base.errors import InvalidRequest, no_such
from app.measurements.tables import NOT_NEGATIVE, Reals
from app.measurements.times import NATIVE
from app.measurements.traces import MAX_STEPS

MAX_VALUES = 20_000_000
"""Steps times series: 160 MB."""
RATE_SUFFIX = "_rps"
"""A column whose name ends so holds rates; a series has no such name."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RateTrace:
    """Arrival rates from second 0 on. Raises InvalidRequest for what cannot be one."""

    names: tuple[str, ...]
    """(S,) one for each series."""
    rates_rps: Reals
    """(T, S) requests per second in each step, T at least 2."""
    step_s: float
    notes: tuple[str, ...] = ()
    """Where it comes from, its licence, and what was done with it; a line each."""

    def __post_init__(self) -> None:
        # A copy that cannot be written to: traces are cached and shared between runs.
        rates_rps = np.array(self.rates_rps, dtype=float)
        _check_names(self.names)
        check_size(len(rates_rps), len(self.names))
        if rates_rps.ndim != 2 or rates_rps.shape[1] != len(self.names):
            raise InvalidRequest(
                f"rates of shape {rates_rps.shape} for {len(self.names)} series"
            )
        if not NOT_NEGATIVE.holds(rates_rps).all():
            raise InvalidRequest(f"every rate must be a number {NOT_NEGATIVE}")
        if not 0.0 < self.step_s < np.inf:
            raise InvalidRequest(f"a step must be longer than 0 s, not {self.step_s:g}")
        # Notes are lines of the file above its header; a line break in one would be read as data.
        if bad := [note for note in self.notes if not note.isprintable()]:
            raise InvalidRequest(f"a note must be one printable line, not {bad[0]!r}")
        rates_rps.flags.writeable = False
        object.__setattr__(self, "rates_rps", rates_rps)

    @property
    def duration_s(self) -> float:
        """Seconds from the beginning of the first step to the end of the last one."""
        return len(self.rates_rps) * self.step_s

    @property
    def requests(self) -> Reals:
        """(S,) expected requests of the whole trace."""
        return np.asarray(self.rates_rps.sum(axis=0) * self.step_s)

    @property
    def means_rps(self) -> Reals:
        """(S,) mean rates."""
        return np.asarray(self.rates_rps.mean(axis=0))

    def place(self, name: str) -> int:
        """Column of a series. Raises InvalidRequest for one that is not there."""
        if name not in self.names:
            raise InvalidRequest(no_such("series", name, self.names))
        return self.names.index(name)

    def shape(self, name: str) -> TraceShape:
        """One series as a simulated load plays it. Raises InvalidRequest."""
        return TraceShape(
            rates_rps=self.rates_rps[:, self.place(name)],
            step_s=self.step_s,
        )

    def with_note(self, note: str) -> "RateTrace":
        """The same trace with one more note."""
        return replace(self, notes=(*self.notes, note))


def check_size(steps: int, series: int) -> None:
    """Raises InvalidRequest for a trace that is too short or would fill the memory."""
    if steps < 2:
        raise InvalidRequest(f"a trace needs at least two steps, not {steps}")
    if steps > MAX_STEPS or steps * series > MAX_VALUES:
        raise InvalidRequest(
            f"{steps:,} steps of {series} series are too many: at most {MAX_STEPS:,} steps and {MAX_VALUES:,} values"
        )


def _check_names(names: tuple[str, ...]) -> None:
    if not names:
        raise InvalidRequest("a trace needs at least one series")
    for index, name in enumerate(names):
        if (
            not name
            or not name.isprintable()
            or name != name.strip()
            # A header that begins so would be read as a note.
            or name.startswith("#")
        ):
            raise InvalidRequest(f"{name!r} cannot name a series")
        if name in NATIVE:
            raise InvalidRequest(
                f"a series cannot be called {name}: such a column holds times"
            )
        if name.endswith(RATE_SUFFIX):
            raise InvalidRequest(
                f"a series cannot be called {name}: {RATE_SUFFIX} marks a column of rates"
            )
        if name in names[:index]:
            raise InvalidRequest(f"two series are called {name}")
