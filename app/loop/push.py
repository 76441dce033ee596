"""Push: a bound plan becomes the target, and its nodes get their commands, in one compare-and-set of the store.

The tick pushes what it decided and what a person approved; the dispatcher of jobs pushes its rounds.
"""

import asyncio
from datetime import timedelta

from app.loop.events import pushed_event
from app.loop.fill import wants_same
from app.loop.make_commands import make_commands
from app.store.store import Proposal, Snapshot, Store
from solvers.types.plan import BoundPlan

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
