"""Greedy counts for the autoscaling program: HetSev's heuristic, service by service.

Running replicas are kept, surplus ones go (the most expensive first, while the rest still serves the rate), and a gap
is filled with the GPU type whose replicas cost least by the program's own objective. The paper fills the whole gap with
one type; here the last replica is priced, and then chosen, by itself, so that a small remainder gets a small GPU.

From nothing and with enough GPUs the cost is at most twice the optimum: let g be the type with the least cost per rps
that the optimum uses. If the optimum uses a type with T ≥ λ, one replica of it was a candidate. Else T_g < λ, and
C_g · ⌈λ / T_g⌉ ≤ C_g · (λ / T_g + 1) ≤ 2 · C_g · λ / T_g ≤ 2 · optimum. Choosing the last one apart never costs more.
"""

from collections.abc import Iterable

from solvers.autoscale.program import (
    ROUNDING,
    Counts,
    ScalingProgram,
    capacity_rps,
    option_cost,
    replicas_needed,
    replicas_of,
    replicas_that_fit,
    score,
    serves_more,
)


def solve_greedy(program: ScalingProgram) -> Counts:
    """Counts that keep every limit. Starts from what runs; from nothing only where that serves more."""
    running = tuple(option.running for option in program.options)
    kept = _counts(program, running)
    if not any(running):
        return kept
    # What runs may occupy what a service of higher priority needs, and is then worth giving up.
    fresh = _counts(program, (0,) * len(running))
    is_worth = serves_more(program, score(program, fresh), score(program, kept))
    return fresh if is_worth else kept


def _counts(program: ScalingProgram, running: Counts) -> Counts:
    state = _State(program)
    by_priority = sorted(
        range(len(program.services)),
        key=lambda service: -program.services[service].priority,
    )
    # All that runs is counted before anything is added, else an addition could take the room of a running replica.
    for service in by_priority:
        for index in program.options_of[service]:
            state.add(index, min(running[index], state.fit(service, index)))
        _trim(state, service)
    for service in by_priority:
        _fill(state, service)
        # The last, larger replica may have made an earlier one superfluous.
        _trim(state, service)
    # Last, since missing replicas count only among counts that serve equally much.
    for service in by_priority:
        _reach_min_replicas(state, service)
    return tuple(state.counts)


class _State:
    """Counts under construction and what they leave free."""

    def __init__(self, program: ScalingProgram) -> None:
        self.program = program
        self.counts = [0] * len(program.options)
        self._free = {
            (limit.rule, limit.where): limit.total for limit in program.limits
        }

    def add(self, index: int, count: int) -> None:
        """Add replicas of one option; a negative count takes them away."""
        self.counts[index] += count
        for limit, need in self.program.limits_of[index]:
            self._free[limit.rule, limit.where] -= need * count

    def fit(self, service: int, index: int) -> int:
        """How many more replicas of an option the limits allow."""
        bounds = [self.program.max_counts[index] - self.counts[index]]
        max_replicas = self.program.services[service].max_replicas
        if max_replicas is not None:
            bounds.append(max_replicas - self.replicas(service))
        for limit, need in self.program.limits_of[index]:
            bounds.append(replicas_that_fit(self._free[limit.rule, limit.where], need))
        return max(0, min(bounds))

    def replicas(self, service: int) -> int:
        """The service's replicas so far."""
        return replicas_of(self.program, self.counts, service)

    def gap_rps(self, service: int) -> float:
        """The rate that the counts do not serve yet; negative where there is more capacity than rate."""
        capacity = capacity_rps(self.program, self.counts, service)
        return self.program.services[service].arrival_rate_rps - capacity

    def cheapest(self, options: Iterable[int], count: int) -> int:
        """The option of which that many more cost least; ties go to the first."""
        return min(options, key=lambda index: (self.added_cost(index, count), index))

    def added_cost(self, index: int, count: int) -> float:
        """What `count` more replicas of an option add to the objective."""
        before = option_cost(self.program, index, self.counts[index])
        return option_cost(self.program, index, self.counts[index] + count) - before


def _trim(state: _State, service: int) -> None:
    """Take away, one at a time, the most expensive replica that the rest can do without."""
    program = state.program
    target = state.program.services[service]
    slack = ROUNDING * target.arrival_rate_rps
    while state.replicas(service) > target.min_replicas:
        spare = [
            index
            for index in program.options_of[service]
            if state.counts[index]
            and state.gap_rps(service) + program.options[index].capacity_rps <= slack
        ]
        if not spare:
            return
        state.add(state.cheapest(spare, -1), -1)


def _fill(state: _State, service: int) -> None:
    """Add replicas until the rate is served or nothing more fits."""
    program = state.program
    slack = ROUNDING * program.services[service].arrival_rate_rps
    while (gap := state.gap_rps(service)) > slack:
        fit = {
            index: state.fit(service, index) for index in program.options_of[service]
        }
        if not _fill_at_once(state, fit, gap) and not _fill_in_part(state, fit):
            return


def _fill_at_once(state: _State, fit: dict[int, int], gap_rps: float) -> bool:
    """Add what the gap needs of the cheapest option, but for its last replica; False where no option fills it alone."""
    options = state.program.options
    needed = {
        index: replicas_needed(gap_rps, options[index].capacity_rps) for index in fit
    }
    able = [index for index in fit if needed[index] <= fit[index]]
    if not able:
        return False
    best = min(
        able, key=lambda index: (_cost_to_fill(state, able, index, gap_rps), index)
    )
    # The last replica is chosen again, for a remainder that may need a smaller GPU.
    state.add(best, max(1, needed[best] - 1))
    return True


def _fill_in_part(state: _State, fit: dict[int, int]) -> bool:
    """Add all that fits of the option that serves most; False where nothing fits."""
    options = state.program.options
    best = max(
        fit,
        key=lambda index: (options[index].capacity_rps * fit[index], -index),
        default=None,
    )
    if best is None or fit[best] == 0:
        return False
    state.add(best, fit[best])
    return True


def _cost_to_fill(state: _State, able: list[int], index: int, gap_rps: float) -> float:
    """The cost of all but the last replica that the gap needs of one option, and of the cheapest way to end it."""
    options = state.program.options
    count = replicas_needed(gap_rps, options[index].capacity_rps)
    if count == 1:
        return state.added_cost(index, 1)
    remainder = gap_rps - (count - 1) * options[index].capacity_rps
    last = min(
        state.added_cost(index, count) - state.added_cost(index, count - 1)
        if other == index
        else state.added_cost(
            other, replicas_needed(remainder, options[other].capacity_rps)
        )
        for other in able
    )
    return state.added_cost(index, count - 1) + last


def _reach_min_replicas(state: _State, service: int) -> None:
    """Add the cheapest replicas until the service has `min_replicas`, as far as they fit."""
    while state.replicas(service) < state.program.services[service].min_replicas:
        able = [
            index
            for index in state.program.options_of[service]
            if state.fit(service, index)
        ]
        if not able:
            return
        state.add(state.cheapest(able, 1), 1)
