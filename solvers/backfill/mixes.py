"""Which tasks may share one host with which shares: of every set of tasks the shares that are worth most."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from solvers.backfill.hosts import Host, HostTenant
from solvers.backfill.residents import bound_task
from solvers.backfill.worth import FixedWorth, Rents, of_running
from solvers.laws.operating_rows import SM_PERCENT_TOLERANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOption:
    """One task in one seat of a host."""

    standing: FixedWorth
    seat: HostTenant
    is_new: bool
    """Whether it must be started for that."""
    max_ms: float = float("inf")
    """With longer iterations than that it does not come: to move must pay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Tasks that run next to each other on one host."""

    options: tuple[TaskOption, ...]
    worth: float
    """What it is worth that all of them run there, the host's rent paid."""
    watts: float
    """That they draw, with the idle watts of a GPU that nothing else uses."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its tasks."""
        return tuple(option.standing.task.name for option in self.options)


def mixes(
    host: Host,
    choices: Sequence[Sequence[TaskOption]],
    rents: Rents,
    *,
    max_tasks: int,
    is_frugal: bool = False,
) -> tuple[Mix, ...]:
    """The best mix of every set of at most `max_tasks` tasks that the host can carry, by the contract's laws.

    choices: the options of each task. is_frugal: watts count, so that the best of each number of watts is given. What
    does not fit does not with more tasks either, since these only take and press; so sets grow task by task. O(options
    to the power of `max_tasks`).
    """
    best: dict[tuple[tuple[str, ...], float], Mix] = {}
    for chosen in _fitting(host, choices, max_tasks):
        mix = _mix(host, chosen, rents)
        if mix is None:
            continue
        key = (mix.names, mix.watts if is_frugal else 0.0)
        if key not in best or mix.worth > best[key].worth:
            best[key] = mix
    # By name, not in the order of finding: the order of columns decides between equal optima.
    return tuple(best[key] for key in sorted(best))


def _fitting(
    host: Host,
    choices: Sequence[Sequence[TaskOption]],
    max_tasks: int,
) -> Iterator[tuple[TaskOption, ...]]:
    """All that fit the host's SMs, memory, watts and promises, the smaller ones before those with more tasks."""
    grown: list[tuple[int, tuple[TaskOption, ...]]] = [(-1, ())]
    for _ in range(max_tasks):
        grown = [more for each in grown for more in _with_one_more(host, choices, each)]
        yield from (more for _, more in grown)


def _with_one_more(
    host: Host,
    choices: Sequence[Sequence[TaskOption]],
    grown: tuple[int, tuple[TaskOption, ...]],
) -> Iterator[tuple[int, tuple[TaskOption, ...]]]:
    """A set with one more task, of those after its last one: so each set is grown in one way only."""
    last, chosen = grown
    for at in range(last + 1, len(choices)):
        for option in choices[at]:
            more = (*chosen, option)
            if _has_sms(host, more) and seated(host, more).holds():
                yield at, more


def seated(host: Host, options: Sequence[TaskOption]) -> Host:
    """The host with just these tasks."""
    residents = [
        (bound_task(option.standing.task, option.seat), option.seat)
        for option in options
    ]
    return replace(host, residents=residents, swapped=[])


def _has_sms(host: Host, options: Sequence[TaskOption]) -> bool:
    """Cheaper to see than the rest."""
    taken = sum(seat.row.sm_percent for seat in host.replicas) + sum(
        each.seat.row.sm_percent for each in options
    )
    max_percent = host.gpu_type.max_sm_percent(len(host.replicas) + len(options))
    return taken <= max_percent + SM_PERCENT_TOLERANCE


def _mix(host: Host, options: tuple[TaskOption, ...], rents: Rents) -> Mix | None:
    """None where a task would run too slowly for its move to pay."""
    trial = seated(host, options)
    pairs = [(option, trial.pace_ms(at)) for at, option in enumerate(options)]
    if any(pace_ms > option.max_ms for option, pace_ms in pairs):
        return None
    worth = sum(
        of_running(option.standing, pace_ms, is_new=option.is_new)
        for option, pace_ms in pairs
    )
    rent = rents.of(
        host,
        [option.standing.remaining_ms(pace_ms) for option, pace_ms in pairs],
    )
    return Mix(options=options, worth=worth - rent, watts=_watts(host, options))


def _watts(host: Host, options: Sequence[TaskOption]) -> float:
    # Next to replicas the GPU's idle watts are drawn anyway.
    idle_w = 0.0 if host.replicas else host.gpu_type.idle_w
    return idle_w + sum(option.seat.row.power_w for option in options)
