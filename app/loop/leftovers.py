"""Leftovers: a decision on services gets its tasks; and how far the loop may go with the whole."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.loop.fill import with_tasks_of
from app.loop.make_commands import changes_leftovers_only, effective_mode
from app.loop.plan import Decision, keep, renewed
from app.loop.planning.language_models import (
    models_gpus,
    with_models,
    without_gpus,
    without_models,
)
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
    """The decision with tasks on what it leaves over. `state`: the GPUs that may be used.

    Where the decision would wait for a person and tasks need no approval, these go first, next to what runs: the
    change of services is decided again in the next tick.
    """

    def filled(decision: Decision) -> Decision:
        apart = ModelsApart(snapshot, decision, state)
        return apart.again(
            with_tasks_of(
                replace(snapshot, target=apart.target),
                apart.decision,
                problem,
                apart.state,
                layers=layers,
                promises_may_break=promises_may_break,
            )
        )

    made = filled(decision)
    mode = _mode(snapshot, made)
    if mode is Mode.APPROVE and snapshot.settings.approve == "services":
        # What the policy remembers stays as it was: it has to decide on the services again.
        kept = keep(problem, snapshot.target, reason="", memory=snapshot.memory)
        meanwhile = filled(kept)
        if _changes_tasks_only(snapshot, meanwhile):
            made, mode = meanwhile, Mode.AUTO
    complete = renewed(snapshot, made)
    # The target itself may be all that there is to push.
    if made.bound is None:
        mode = _mode(snapshot, complete)
    return CompleteDecision(decision=complete, mode=mode)


class ModelsApart:
    """A decision without language models and their GPUs, for those who share GPUs."""

    def __init__(
        self, snapshot: Snapshot, decision: Decision, state: ClusterState
    ) -> None:
        """`state`: the GPUs that may be used."""
        target, bound = snapshot.target, decision.bound
        self._complete = bound or target
        self.state = without_gpus(state, models_gpus(self._complete))
        self.target = None if target is None else without_models(target)
        self.decision = decision
        if bound is not None:
            self.decision = replace(decision, bound=without_models(bound))

    def again(self, decision: Decision) -> Decision:
        """What became of the decision, with its language models."""
        if decision.bound is None or self._complete is None:
            return decision
        return replace(decision, bound=with_models(decision.bound, self._complete))


def _mode(snapshot: Snapshot, decision: Decision) -> Mode | None:
    if decision.bound is None:
        return None
    return effective_mode(
        snapshot.settings, snapshot.state.services, snapshot.target, decision.bound
    )


def _changes_tasks_only(snapshot: Snapshot, decision: Decision) -> bool:
    """Where nothing runs yet, tasks have nowhere to go next to it."""
    target, bound = snapshot.target, decision.bound
    return (
        target is not None
        and bound is not None
        and changes_leftovers_only(target, bound)
    )
