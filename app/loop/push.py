"""Push: a bound plan becomes the target, and its nodes get their commands, in one compare-and-set of the store.

The tick pushes what it decided and what a person approved; the dispatcher of jobs pushes its rounds.
"""

import asyncio

from app.loop.events import pushed_event
from app.loop.make_commands import make_commands
from app.store.store import Snapshot, Store
from solvers.types.plan import BoundPlan


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
