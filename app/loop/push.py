"""Push: a bound plan becomes the target, and its nodes get their commands, in one compare-and-set of the store.

The tick pushes what it decided and what a person approved; the dispatcher of jobs pushes its rounds. Where no plan
changes, nodes may still have to be told: of a service without a replica, whose requests they take, or of another SLO.
"""

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta

from app.loop.demand_fallbacks import DecidedOn
from app.loop.events import pushed_event
from app.loop.fill import wants_same
from app.loop.make_commands import make_commands, nodes_for_waiting, services_on
from app.loop.plan import Decision, again, keep, make_record, new_memory
from app.store.store import PlanRecord, Proposal, Snapshot, Store
from solvers.types.plan import BoundPlan
from solvers.types.state import Mode

PROPOSAL_STAYS = timedelta(seconds=120)
"""While load moves nearly every tick has another plan; a person needs time to read one and approve that very one."""


def why_it_stays(waiting: Proposal, snapshot: Snapshot, bound: BoundPlan) -> str | None:
    """Why this newer plan does not take the place of the one that waits; None: it does."""
    generation = snapshot.target.generation if snapshot.target else 0
    now = (
        generation,
        snapshot.state.catalogue_revision,
        snapshot.settings.version,
    )
    # Made from anything older it would lose, even when a person approved it.
    if now != (
        waiting.bound.parent,
        waiting.catalogue_revision,
        waiting.policy_version,
    ):
        return None
    if wants_same(bound, waiting.bound):
        return f"plan {waiting.plan_id} proposed this already"
    # One that a person rejected waits no longer; only the same is not proposed again.
    is_pending = (
        snapshot.proposal is not None and snapshot.proposal.plan_id == waiting.plan_id
    )
    if is_pending and snapshot.at < waiting.at + PROPOSAL_STAYS:
        stays_s = PROPOSAL_STAYS.total_seconds()
        return (
            f"plan {waiting.plan_id} waits for a person; a newer one takes its place after {stays_s:.0f} s, or "
            "as soon as it could no longer be pushed"
        )
    return None


async def push_target(
    store: Store, snapshot: Snapshot, bound: BoundPlan, plan_id: int
) -> bool:
    """Whether the plan became the target. The store says no where its parent or the catalogue changed meanwhile."""
    # In threads, so that the event loop goes on while every GPU of a large fleet is looked at.
    commands = await asyncio.to_thread(make_commands, bound, snapshot.state)
    line = await asyncio.to_thread(pushed_event, snapshot, bound, plan_id)
    return await store.push_target(plan_id, bound, commands, snapshot.at, line=line)


def record_of(snapshot: Snapshot, outcome: DecidedOn, mode: Mode | None) -> PlanRecord:
    """The decision as it is written down, with what the policy wants to remember."""
    problem, decision, demands, *_ = outcome
    # A loop that keeps its plan would store the same problem in every tick.
    stored = None if decision.state == "kept" else problem
    record = make_record(snapshot, decision, demands, stored)
    return replace(
        record,
        waits=mode not in (None, Mode.AUTO),
        memory=new_memory(snapshot, decision),
    )


def following(decision: Decision, target: BoundPlan) -> Decision:
    """The decision with its plan made to come after this target, which is the one it was made from, given again."""
    assert decision.bound is not None
    generation = target.generation
    bound = replace(decision.bound, generation=generation + 1, parent=generation)
    return replace(decision, bound=bound)


@dataclass(slots=True)
class GivenCommands:
    """What every node was last found to be told: the target, and what else commands are made from."""

    _of: tuple[int, int, frozenset[str]] | None = None

    def note(self, snapshot: Snapshot, generation: int) -> None:
        """The commands of this generation were made from the snapshot, and given."""
        self._of = _made_from(snapshot, generation)

    async def renewal(
        self,
        store: Store,
        snapshot: Snapshot,
        outcome: DecidedOn,
        mode: Mode | None,
    ) -> Decision | None:
        """The plan in force again, where nodes have to be told of services and nodes that changed and what is decided
        tells them nothing now; None: they need not be told, or not yet. `mode`: how far the loop may go with that."""
        # Advice gives no commands, whatever changed.
        if mode is Mode.AUTO or snapshot.settings.mode is Mode.ADVISE:
            return None
        # A new target would outdate the very plan that a person reads; its approval tells the nodes as well.
        if mode is None and snapshot.proposal is not None:
            return None
        decision = outcome.decision
        if snapshot.target is None or not await self._are_behind(
            store, snapshot, decision.bound
        ):
            return None
        if decision.state != "kept":
            decision = keep(
                outcome.problem, snapshot.target, reason="", memory=snapshot.memory
            )
        return again(decision, snapshot.target, "services or nodes changed")

    async def _are_behind(
        self, store: Store, snapshot: Snapshot, proposed: BoundPlan | None
    ) -> bool:
        """Whether the target, as it is, makes other commands than nodes were given; services that a plan starts which
        a person has yet to approve aside."""
        target, state = snapshot.target, snapshot.state
        # Looked up after a change alone: to make all commands of a large fleet takes long.
        if target is None or self._of == _made_from(snapshot, target.generation):
            return False
        commands = await asyncio.to_thread(make_commands, target, state)
        if await store.has_given(commands):
            self.note(snapshot, target.generation)
            return False
        if proposed is None:
            return True
        starting = services_on(proposed.gpus) - services_on(target.gpus)
        known = [each for each in state.services if each.name not in starting]
        rest = replace(state, services=tuple(known))
        return not await store.has_given(
            await asyncio.to_thread(make_commands, target, rest)
        )


def _made_from(snapshot: Snapshot, generation: int) -> tuple[int, int, frozenset[str]]:
    state = snapshot.state
    # A node that falls silent changes where requests wait, and nothing of the catalogue.
    return generation, state.catalogue_revision, nodes_for_waiting(state)
