"""Who used what of a GPU over a window: memory, SMs and energy by part, and whether that is more than was granted.

    attribute(Window, parts)   -> one Use per part, one for processes that belong to none, one for what is idle
    Judge().judge(uses)        -> the same with `over`: what is, for several windows in a row, more than was granted

A part is a replica or a task. What is measured and what is not:

    memory     of its processes, as the driver lists them
    SM use     share of time in which its kernels ran. A process that has the whole GPU in turn: as the driver measures
               it. A client of MPS runs on some of the SMs only, and drivers tell of the time alone, or nothing: time
               (else the server's own busy time) × its share of the SMs, marked as estimated
    energy     the GPU's energy is measured, that of a process nowhere. What the idle GPU draws is divided by the SM
               percent granted, the rest by SM percent used. All shares are whole millijoules that add up to the GPU's

Nothing here asks a driver or a clock; `agents.gpu.node.use` does.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["replica", "task", "others", "idle"]
Quantity: TypeAlias = Literal["memory", "sm_count", "sm_use"]
Key: TypeAlias = tuple[Kind, str]

OTHERS: Key = ("others", "(others)")
IDLE: Key = ("idle", "(idle)")

MEMORY_SLACK = 0.05
MEMORY_SLACK_MIB = 64.0
"""Memory beyond the grant is no overuse up to the larger of the two, of which one is a share of the grant."""
SM_SLACK_PERCENT = 10.0
"""SM percent above what was granted is no overuse up to this: the driver's samples are coarse."""
WINDOWS = 5
"""In a row that an overuse takes to begin, and to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedPart:
    """A replica or a task with what it was granted."""

    kind: Literal["replica", "task"]
    name: str
    owner: str = ""
    """The service of a replica."""
    sm_percent: float
    memory_mib: float
    busy_share: float | None = None
    """The share of the time in which batches ran, as its server says; None = it does not tell."""
    is_limited: bool = False
    """MPS limits it to its SM percent; without that there is no limit that it could exceed."""
    proven_sm_percent: float | None = None
    """The part of the GPU's SMs that its process sees, as it says."""

    @property
    def key(self) -> Key:
        """What it is called."""
        return self.kind, self.name

    @property
    def sm_share(self) -> float:
        """Share of the GPU's SMs that its kernels may run on, as far as is known."""
        return min(1.0, (self.proven_sm_percent or self.sm_percent) / 100.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedProcess:
    """A process on the GPU."""

    owner: Key
    """Whose it is; `OTHERS` = no part's."""
    memory_mib: float | None
    is_mps: bool
    time_percent: float | None
    """The percent of the window in which its kernels ran; None = the driver tells nothing of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuWindow:
    """One GPU over a window."""

    gpu_index: int
    seconds: float
    energy_j: float
    idle_w: float
    """What the GPU draws when nothing runs."""
    processes: tuple[OwnedProcess, ...] = ()
    knows_use: bool = True
    """The driver measures processes: of whom it tells nothing, no kernel ran; False: that is not known."""
    knows_clients: bool = True
    """The driver says who is a client of MPS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundOveruse:
    """Something of which more is used than was granted."""

    quantity: Quantity
    granted: float
    used: float
    """MiB of memory, percent of the GPU's SMs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartUse:
    """What one part used; processes of no part are `OTHERS`, what none used is `IDLE`."""

    kind: Kind
    name: str
    owner: str = ""
    gpu_index: int
    memory_used_mib: float | None = None
    """None = the driver does not tell."""
    sm_percent: float | None = None
    """None = not known."""
    energy_mj: int = 0
    is_estimated: bool = False
    """SM use, and with it energy, rests on more than the driver's measurement."""
    excesses: tuple[FoundOveruse, ...] = ()
    """More than was granted, in this window."""
    grants: tuple[tuple[Quantity, float], ...] = ()
    """What it is judged by."""
    over: tuple[FoundOveruse, ...] = ()
    """What has lasted among them, see `Judge`."""


def attribute(window: GpuWindow, parts: Iterable[GrantedPart]) -> tuple[PartUse, ...]:
    """One Use per part, by kind and name, then others (where there are any) and idle; energies add up exactly."""
    # In one order, so that rounding gives each part the same millijoule in every run.
    ordered = sorted(parts, key=lambda part: part.key)
    uses = [_use(window, part) for part in ordered]
    if any(each.owner == OTHERS for each in window.processes):
        uses.append(_others(window))
    # Idle comes last: `_with_energy` gives it what was not granted.
    uses.append(PartUse(kind=IDLE[0], name=IDLE[1], gpu_index=window.gpu_index))
    return _with_energy(window, uses, {part.key: part.sm_percent for part in ordered})


def _use(window: GpuWindow, part: GrantedPart) -> PartUse:
    mine = tuple(each for each in window.processes if each.owner == part.key)
    percent, is_estimated = _sm_percent(window, part, mine)
    memory_mib = _sum(each.memory_mib for each in mine)
    grants: list[tuple[Quantity, float]] = [("memory", part.memory_mib)]
    used: dict[Quantity, float | None] = {"memory": memory_mib}
    # Without MPS nothing limits a part's SMs, so it cannot exceed what was not enforced.
    if part.is_limited:
        grants += [("sm_count", part.sm_percent), ("sm_use", part.sm_percent)]
        used |= {"sm_count": part.proven_sm_percent, "sm_use": percent}
    excesses = (
        FoundOveruse(quantity=quantity, granted=granted, used=found)
        for quantity, granted in grants
        if (found := used[quantity]) is not None and found > granted
    )
    return PartUse(
        kind=part.kind,
        name=part.name,
        owner=part.owner,
        gpu_index=window.gpu_index,
        memory_used_mib=memory_mib,
        sm_percent=percent,
        is_estimated=is_estimated,
        excesses=tuple(excesses),
        grants=tuple(grants),
    )


def _sm_percent(
    window: GpuWindow, part: GrantedPart, mine: Sequence[OwnedProcess]
) -> tuple[float | None, bool]:
    """Percent of the GPU's SMs over the window, and whether it is estimated."""
    measured = [each.time_percent for each in mine if each.time_percent is not None]
    # Where the driver does not say who is a client, a limited part counts as one.
    is_client = part.is_limited and (
        not window.knows_clients or any(each.is_mps for each in mine)
    )
    # Several processes of a part may overlap in time, so their sum can exceed the window.
    time_percent = min(100.0, math.fsum(measured))
    if is_client or (part.is_limited and not mine):
        if measured:
            return time_percent * part.sm_share, True
    elif measured or window.knows_use:
        return time_percent, False
    # The server's own busy time is the last resort: it counts batches and not kernels.
    if part.busy_share is None:
        return None, True
    return 100.0 * part.busy_share * part.sm_share, True


def _others(window: GpuWindow) -> PartUse:
    mine = tuple(each for each in window.processes if each.owner == OTHERS)
    measured = [each.time_percent for each in mine if each.time_percent is not None]
    return PartUse(
        kind=OTHERS[0],
        name=OTHERS[1],
        gpu_index=window.gpu_index,
        memory_used_mib=_sum(each.memory_mib for each in mine),
        sm_percent=min(100.0, math.fsum(measured))
        if measured or window.knows_use
        else None,
        # Of a client of somebody's MPS it is not known how many SMs it may use.
        is_estimated=not window.knows_use or any(each.is_mps for each in mine),
    )


def _sum(known: Iterable[float | None]) -> float | None:
    """The sum of what is known; None where nothing is."""
    found = [each for each in known if each is not None]
    return math.fsum(found) if found else None


def _with_energy(
    window: GpuWindow, uses: Sequence[PartUse], granted: Mapping[Key, float]
) -> tuple[PartUse, ...]:
    """With the GPU's energy divided. A part of whose use nothing is known is taken to have used what it was granted."""
    # In whole millijoules, because shares of floats do not add up exactly.
    total_mj = round(1000.0 * window.energy_j)
    grants = [granted.get((use.kind, use.name), 0.0) for use in uses]
    # What an idle GPU draws is paid by those who reserved it; the rest is no part's.
    grants[-1] = max(0.0, 100.0 - math.fsum(grants))
    active = [
        grant if use.sm_percent is None else use.sm_percent
        for use, grant in zip(uses, grants, strict=True)
    ]
    active[-1] = 0.0
    idle_mj = min(total_mj, round(1000.0 * window.idle_w * window.seconds))
    # Nothing ran, so that all of it is the idle GPU's, however much more it was than expected.
    if not any(active):
        idle_mj = total_mj
    pairs = zip(
        divide(idle_mj, grants), divide(total_mj - idle_mj, active), strict=True
    )
    return tuple(
        replace(use, energy_mj=idle + run)
        for use, (idle, run) in zip(uses, pairs, strict=True)
    )


def divide(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """A whole number in whole shares by weight, which add up to it; all to the last without any weight.

    By cumulative rounding: each gets what lies between its rounded ends, so that none is negative.
    """
    total_weight = math.fsum(weights)
    if total_weight <= 0.0:
        return (*(0 for _ in weights[:-1]), total)
    ends, upto = [0], 0.0
    for weight in weights:
        upto += weight
        ends.append(min(total, round(total * (upto / total_weight))))
    # Behind the last weight that counts nothing is left, whatever rounding says.
    last = max(at for at, weight in enumerate(weights) if weight > 0.0)
    ends[last + 1 :] = [total] * (len(weights) - last)
    return tuple(after - before for before, after in itertools.pairwise(ends))


@dataclass(slots=True)
class _Streak:
    windows: int = 0
    """In a row that speak against what holds."""
    is_on: bool = False
    worst: float = 0.0


@dataclass(slots=True)
class Judge:
    """What has been used beyond its grant for WINDOWS windows; it ends after as many without.

    Above the grant plus its slack a window speaks for overuse, up to the grant plus half of it against.
    """

    _streaks: dict[tuple[int, Key, Quantity], _Streak] = field(default_factory=dict)

    def judge(self, uses: Iterable[PartUse]) -> tuple[PartUse, ...]:
        """The same uses with `over`; call it once per window with those of all GPUs."""
        kept: dict[tuple[int, Key, Quantity], _Streak] = {}
        judged = tuple(self._judge(use, kept) for use in uses)
        # Of parts that are gone nothing is remembered.
        self._streaks = kept
        return judged

    def _judge(
        self, use: PartUse, kept: dict[tuple[int, Key, Quantity], _Streak]
    ) -> PartUse:
        excess = {each.quantity: each.used for each in use.excesses}
        over = []
        for quantity, granted in use.grants:
            key = (use.gpu_index, (use.kind, use.name), quantity)
            streak = kept[key] = self._streaks.get(key, _Streak())
            _count(
                streak, excess.get(quantity, 0.0), granted, slack_of(quantity, granted)
            )
            if streak.is_on:
                over.append(
                    FoundOveruse(quantity=quantity, granted=granted, used=streak.worst)
                )
        return replace(use, over=tuple(over)) if over else use


def slack_of(quantity: Quantity, granted: float) -> float:
    """How much above the grant is no overuse."""
    return (
        max(MEMORY_SLACK * granted, MEMORY_SLACK_MIB)
        if quantity == "memory"
        else SM_SLACK_PERCENT
    )


def _count(streak: _Streak, used: float, granted: float, slack: float) -> None:
    # Half the slack on the way back keeps a use at the limit from switching the report on and off.
    level = granted + (slack / 2.0 if streak.is_on else slack)
    streak.windows = streak.windows + 1 if (used > level) != streak.is_on else 0
    if streak.windows >= WINDOWS:
        streak.is_on, streak.windows = not streak.is_on, 0
        streak.worst = 0.0
    streak.worst = max(streak.worst, used) if streak.is_on else 0.0
