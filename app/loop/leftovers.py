"""Leftovers: a decision on services gets its tasks, then its spares; and how far the loop may go with the whole."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.loop.fill import with_tasks_of
from app.loop.make_commands import changes_leftovers_only, effective_mode
from app.loop.plan import Decision, keep, renewed
from app.loop.planning.reschedule import avoided_gpus
from app.loop.spares import with_spares_of
from app.store.store import Snapshot
from solvers.predict.data.samples import LayerCounts
from solvers.types.problem import Problem
from solvers.types.state import ClusterState, Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteDecision:
    """A decision with all that it gives away."""

    decision: Decision
    mode: Mode | None
    """How far the loop may go with it; None: there is nothing to push."""


def with_leftovers(
    snapshot: Snapshot,
    decision: Decision,
    problem: Problem,
    state: ClusterState,
    *,
    layers: Sequence[LayerCounts],
    promises_may_break: bool,
) -> CompleteDecision:
    """The decision with tasks and spares on what it leaves over. `state`: the GPUs that may be used.

    Where the decision would wait for a person and tasks need nobody's approval, these go first, beside what runs: the
    change of services is decided again in the next tick.
    """

    def filled(decision: Decision) -> Decision:
        return with_tasks_of(
            snapshot,
            decision,
            problem,
            state,
            layers=layers,
            promises_may_break=promises_may_break,
        )

    made = filled(decision)
    mode = _mode(snapshot, made)
    if mode is Mode.APPROVE and snapshot.settings.approve == "services":
        # What the policy remembers stays as it was: it has to decide on the services again.
        kept = keep(problem, snapshot.target, reason="", memory=snapshot.memory)
        meanwhile = filled(kept)
        if _changes_tasks_only(snapshot, meanwhile):
            made, mode = meanwhile, Mode.AUTO
    complete = with_spares_of(
        renewed(snapshot, made),
        problem,
        state,
        policy=snapshot.settings.policy,
        target=snapshot.target,
        avoided=avoided_gpus(snapshot),
    )
    # Spares change no mode, but they may be all that there is to push.
    if made.bound is None:
        mode = _mode(snapshot, complete)
    return CompleteDecision(decision=complete, mode=mode)


def _mode(snapshot: Snapshot, decision: Decision) -> Mode | None:
    if decision.bound is None:
        return None
    return effective_mode(
        snapshot.settings, snapshot.state.services, snapshot.target, decision.bound
    )


def _changes_tasks_only(snapshot: Snapshot, decision: Decision) -> bool:
    """Where nothing runs yet, tasks have nowhere to go beside it."""
    target, bound = snapshot.target, decision.bound
    return (
        target is not None
        and bound is not None
        and changes_leftovers_only(target, bound)
    )
