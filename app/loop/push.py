"""Push: a bound plan becomes the target, and its nodes get their commands, in one compare-and-set of the store.

The tick pushes what it decided and what a person approved; the dispatcher of jobs pushes its rounds. A plan that waits
for a person is a Proposal.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

from app.loop.events import pushed_event
from app.loop.fill import wants_same
from app.loop.make_commands import make_commands
from app.store.store import Snapshot, Store
from solvers.types.plan import BoundPlan

PROPOSAL_STAYS = timedelta(seconds=120)
"""While load moves nearly every tick has another plan; a person needs time to read one and approve that very one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The newest plan that waits for a person."""

    plan_id: int
    bound: BoundPlan
    at: datetime
    catalogue_revision: int
    """Approved at any other revision, it would lose."""
    policy_version: int

    def why_it_stays(self, snapshot: Snapshot, bound: BoundPlan) -> str | None:
        """Why this newer plan does not take its place; None: it does."""
        generation = snapshot.target.generation if snapshot.target else 0
        now = (
            generation,
            snapshot.state.catalogue_revision,
            snapshot.settings.version,
        )
        # Made from anything older it would lose, even when a person approved it.
        if now != (self.bound.parent, self.catalogue_revision, self.policy_version):
            return None
        if wants_same(bound, self.bound):
            return f"plan {self.plan_id} proposed this already"
        # One that a person rejected waits no longer; only the same is not proposed again.
        is_pending = snapshot.proposed_id == self.plan_id
        if is_pending and snapshot.at < self.at + PROPOSAL_STAYS:
            stays_s = PROPOSAL_STAYS.total_seconds()
            return (
                f"plan {self.plan_id} waits for a person; a newer one takes its place after {stays_s:.0f} s, or "
                "as soon as it could no longer be pushed"
            )
        return None


async def push_target(
    store: Store, snapshot: Snapshot, bound: BoundPlan, plan_id: int
) -> bool:
    """Whether the plan became the target. The store says no where its parent or the catalogue changed meanwhile."""
    # In a thread, so that the event loop goes on while the commands of a large fleet are made.
    commands = await asyncio.to_thread(make_commands, bound, snapshot.state)
    won = await store.push_target(plan_id, bound, commands, snapshot.at)
    if won:
        await store.add_events(pushed_event(snapshot, bound, plan_id))
    return won
