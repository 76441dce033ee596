"""Spread: the GPUs of a plan over nodes and zones, so that no loss takes too much of a service.

A policy decides in anonymous GPUs; which of them stand on which node is free, but for what runs already. `bind` matches
them for the fewest starts, and this improves the match:

    min  Σ over services s and domains d of  max(0, r_sd − (Σ_d r_sd − needed_s)) / Σ_d r_sd

r_sd: rps that the plan serves of s in domain d (a node or a zone), needed_s: what must be left. One step exchanges
what two GPUs of a type get; an empty one gets all of another. Steps are taken while one helps, the best first. Running
replicas are moved only for services whose teams ask for it, where a move is worth it, and only to empty GPUs, where
they start before they stop.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from solvers.tick.matching import GpuPlace, PlanSlot
from solvers.types.state import NodeId
from solvers.types.survival import SurvivalGoal

Taken = list[tuple[GpuPlace, PlanSlot]]
DomainOf = Callable[[GpuPlace, SurvivalGoal], str]
MayStart = Callable[[GpuPlace, PlanSlot], bool]

MIN_GAIN = 0.1
"""The share of a service's rate that a loss must take less, for each running replica that a step stops."""
MAX_MOVED = 2
"""GPUs with running replicas that one plan moves: every move starts replicas, and the next plan may move more."""
MAX_STEPS = 16
MAX_LOOKED_AT = 32
"""Slots at fault that one step chooses from, of those that differ in what a move gains, and"""
MAX_PLACES = 128
"""empty GPUs, and taken ones, that it may send each to, likewise: a large fleet is spread over several plans."""
_ROUNDING, _DIGITS = 1e-9, 9
"""Gains that differ by less are the same, so that the order of GPUs decides and not rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """Slot number `at` goes to another place; the slot that is there, if any, comes back."""

    at: int
    place: GpuPlace
    other: int | None
    gain: float
    moved: int
    """Running replicas that stop."""


def spread(
    taken: Taken,
    empty: Sequence[GpuPlace],
    goals: Sequence[SurvivalGoal],
    domain_of: DomainOf,
    may_start: MayStart,
) -> Taken:
    """The match with the GPUs exchanged so that losses take less; the same where nothing helps.

    empty: GPUs that the match leaves free and that may start something. may_start: whether a slot may start on a place,
    beyond their types. Complexity: O(steps · slots looked at · (places + gains looked at · services on a GPU)).
    """
    wanted = [goal for goal in goals if goal.loss in ("node", "zone")]
    if not wanted or len(taken) < 2:
        return taken
    asked = [goal for goal in wanted if goal.is_asked]
    found = sorted(taken, key=lambda pair: pair[0].gpu.id)
    rest = list(empty)
    moved = 0
    for _ in range(MAX_STEPS):
        steps = list(_steps(_Losses(found, wanted, domain_of), rest, may_start))
        if not steps and moved < MAX_MOVED:
            steps = list(
                _moves_of_running(_Losses(found, asked, domain_of), rest, may_start)
            )
        best = min(
            steps,
            key=lambda step: (-round(step.gain, _DIGITS), step.moved),
            default=None,
        )
        if best is None:
            break
        moved += best.moved > 0
        _take(found, rest, best)
    return found


def _take(found: Taken, rest: list[GpuPlace], step: _Step) -> None:
    place, slot = found[step.at]
    found[step.at] = (step.place, slot)
    if step.other is None:
        rest.remove(step.place)
        # Where something runs until its successor is ready, nothing may start in this plan.
        if not place.replicas:
            rest.append(place)
    else:
        found[step.other] = (place, found[step.other][1])


class _Losses:
    """What each domain's loss would take of each service beyond what it may."""

    def __init__(
        self, taken: Taken, goals: Sequence[SurvivalGoal], domain_of: DomainOf
    ) -> None:
        self.taken = taken
        self.goals = {goal.service: goal for goal in goals}
        self.domain_of = domain_of
        self._rps: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._total: defaultdict[str, float] = defaultdict(float)
        self.rates = [self._rates(slot) for _, slot in taken]
        """By slot, what it serves of each service with a goal."""
        for (place, _), rates in zip(taken, self.rates, strict=True):
            for service, rps in rates.items():
                self._rps[service, self.domain(place, service)] += rps
                self._total[service] += rps

    def _rates(self, slot: PlanSlot) -> dict[str, float]:
        return {
            each.service: each.arrival_rate_rps
            for each in slot.gpu.replicas
            if each.service in self.goals
        }

    def domains(self, at: int, place: GpuPlace) -> tuple[str, ...]:
        """What would be lost with the place, for each service of a slot; never empty for a slot at fault."""
        return tuple(self.domain(place, service) for service in self.rates[at])

    def load(self, at: int) -> tuple[tuple[str, float], ...]:
        """What a slot serves, of services with a goal."""
        return tuple(self.rates[at].items())

    def domain(self, place: GpuPlace, service: str) -> str:
        """What would be lost with the place, as the service sees it."""
        return self.domain_of(place, self.goals[service])

    def excess(self, service: str, domain: str, more_rps: float = 0.0) -> float:
        """The share of its rate by which the loss of a domain takes too much, with so much more planned there."""
        total = self._total[service]
        if total <= 0.0:
            return 0.0
        may_take = total - self.goals[service].needed_rps
        return max(0.0, self._rps[service, domain] + more_rps - may_take) / total

    def at_fault(self) -> list[int]:
        """The slots in domains whose loss takes too much, that another place could help; the last ones first, so that
        the first GPUs are used before others."""
        return [
            at
            for at, (place, _) in reversed([*enumerate(self.taken)])
            if any(
                self.excess(service, self.domain(place, service)) > _ROUNDING
                # Where one GPU has all of a service, it takes everything wherever it stands.
                and rps < self._total[service] * (1.0 - _ROUNDING)
                for service, rps in self.rates[at].items()
            )
        ]

    def gain(self, here: int, place: GpuPlace, other: int | None) -> float:
        """By how much less is lost when a slot goes to another place, in shares of services' rates."""
        more: defaultdict[tuple[str, str], float] = defaultdict(float)
        old, _ = self.taken[here]
        self._shift(more, here, old, place)
        if other is not None:
            self._shift(more, other, place, old)
        return sum(
            self.excess(service, domain) - self.excess(service, domain, rps)
            for (service, domain), rps in more.items()
        )

    def _shift(
        self,
        more: defaultdict[tuple[str, str], float],
        at: int,
        old: GpuPlace,
        new: GpuPlace,
    ) -> None:
        """Add what domains gain of services when a slot goes from one place to another."""
        for service, rps in self.rates[at].items():
            more[service, self.domain(old, service)] -= rps
            more[service, self.domain(new, service)] += rps


def _steps(
    losses: _Losses,
    empty: Sequence[GpuPlace],
    may_start: MayStart,
) -> Iterator[_Step]:
    """Every step that helps and stops nothing, in the order of the match."""
    free = _by_node(empty)
    loose = [at for at, pair in enumerate(losses.taken) if not _kept(*pair)]
    is_loose = set(loose)
    for at in _looked_at(losses, (at for at in losses.at_fault() if at in is_loose)):
        yield from _moves(losses, at, 0, free, may_start)
        yield from _exchanges(losses, at, loose, may_start)


def _moves_of_running(
    losses: _Losses,
    empty: Sequence[GpuPlace],
    may_start: MayStart,
) -> Iterator[_Step]:
    """Running replicas to empty GPUs, where that helps enough."""
    free = _by_node(empty)
    running = (at for at in losses.at_fault() if _kept(*losses.taken[at]))
    for at in _looked_at(losses, running):
        stops = _kept(*losses.taken[at])
        yield from _moves(losses, at, stops, free, may_start)


def _looked_at(losses: _Losses, at_fault: Iterable[int]) -> Iterator[int]:
    """The first of the slots at fault that are alike: each gains the same by the same move."""

    def kind(at: int) -> tuple[object, ...]:
        place, slot = losses.taken[at]
        return (
            place.gpu.gpu_type,
            place.gpu.node,
            losses.load(at),
            _kept(place, slot),
        )

    # Backwards, so that the first of each kind stays.
    at_fault = list(at_fault)
    first = {kind(at): at for at in reversed(at_fault)}
    kept = set(first.values())
    return islice((at for at in at_fault if at in kept), MAX_LOOKED_AT)


def _by_node(places: Sequence[GpuPlace]) -> list[list[GpuPlace]]:
    """The places of each type and node together, in the order of their first ones."""
    groups: defaultdict[tuple[str, NodeId], list[GpuPlace]] = defaultdict(list)
    for place in places:
        groups[place.gpu.gpu_type, place.gpu.node].append(place)
    return list(groups.values())


def _moves(
    losses: _Losses,
    at: int,
    stops: int,
    free: Sequence[Sequence[GpuPlace]],
    may_start: MayStart,
) -> Iterator[_Step]:
    """A slot to empty places."""
    for target in islice(_targets(losses, at, free, may_start), MAX_PLACES):
        gain = losses.gain(at, target, None)
        if gain > MIN_GAIN * stops + _ROUNDING:
            yield _Step(at=at, place=target, other=None, gain=gain, moved=stops)


def _targets(
    losses: _Losses,
    at: int,
    free: Sequence[Sequence[GpuPlace]],
    may_start: MayStart,
) -> Iterator[GpuPlace]:
    """The first empty place that a slot may go to in other domains: those in the same ones are as good."""
    place, slot = losses.taken[at]
    seen = {losses.domains(at, place)}
    for places in free:
        domains = losses.domains(at, places[0])
        if places[0].gpu.gpu_type != place.gpu.gpu_type or domains in seen:
            continue
        target = next((each for each in places if may_start(each, slot)), None)
        if target is not None:
            seen.add(domains)
            yield target


def _exchanges(
    losses: _Losses, at: int, loose: Sequence[int], may_start: MayStart
) -> Iterator[_Step]:
    """Two slots that keep nothing where they are; loose: the numbers of such slots."""
    for other in islice(_partners(losses, at, loose, may_start), MAX_PLACES):
        target, _ = losses.taken[other]
        gain = losses.gain(at, target, other)
        if gain > _ROUNDING:
            yield _Step(at=at, place=target, other=other, gain=gain, moved=0)


def _partners(
    losses: _Losses, at: int, loose: Sequence[int], may_start: MayStart
) -> Iterator[int]:
    """Slots in other domains that a slot may change places with, the first of those that serve alike on a node."""
    place, slot = losses.taken[at]
    here = losses.domains(at, place)
    seen: set[tuple[object, ...]] = set()
    for other in loose:
        target, back = losses.taken[other]
        kind = target.gpu.node, losses.load(other)
        if target.gpu.gpu_type != place.gpu.gpu_type or kind in seen:
            continue
        # In the same domains the slot would take as much with it as here.
        if losses.domains(at, target) == here:
            continue
        if may_start(target, slot) and may_start(place, back):
            seen.add(kind)
            yield other


def _kept(place: GpuPlace, slot: PlanSlot) -> int:
    """Running replicas that the slot keeps at the place."""
    return len(place.replicas.keys() & slot.replicas.keys())
