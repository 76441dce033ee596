"""What is seen of a task from outside: that it has come up, how far it is, and that it hangs.

watch = Watch(hook=HookClient(), prove=…, ask_s=0.5)
    await watch.look(task)          what its hook says now; nothing of one without a hook
    await watch.bring_up(task)      -> why it must not run on; empty = its program is there and its share is proven
    await watch.follow(task)        -> that it hung, in words; until then its progress is noted
"""

import asyncio
import time
from dataclasses import dataclass

from agents.base.device import DeviceError
from agents.replicas.replica import Prove
from agents.tasks.hook import HookClient, HookFailed
from agents.tasks.task import TaskProcess, read_progress


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWatch:
    """Watches all tasks of a node."""

    hook: HookClient
    prove: Prove
    """Why a task's share is not in force; empty = it is."""
    ask_s: float
    """Between two questions."""

    async def look(self, each: TaskProcess) -> None:
        """Note what its hook says. Raises HookFailed."""
        if each.url:
            each.note_status(await self.hook.status(each.url))

    async def bring_up(self, each: TaskProcess) -> str:
        """Why it must not run on; empty = its program is there and its share is proven."""
        assert each.process is not None
        await each.process.placed()
        while True:
            try:
                await self.look(each)
                # Asked again each time: the program may still be starting processes of its own.
                pids = await asyncio.to_thread(each.process.members)
                objection = await self.prove(each.proof(pids))
            except (DeviceError, OSError) as error:
                objection = str(error)
            else:
                # One that tells how many SMs it sees has its GPU; another may still be coming to it.
                if not objection or (
                    each.status is not None and each.status.sm_count is not None
                ):
                    return objection
            each.message = objection
            await asyncio.sleep(self.ask_s)

    async def follow(self, each: TaskProcess) -> str:
        """Note how far it comes; return when its hook has answered nothing for too long."""
        answered_s = time.monotonic()
        limit_s = each.record.template.hung_after_s
        while True:
            try:
                await self.look(each)
                if not each.url:
                    each.note_kept(
                        await asyncio.to_thread(
                            read_progress, each.record.progress_file
                        ),
                        time.monotonic(),
                    )
                answered_s = time.monotonic()
            except HookFailed as error:
                if time.monotonic() - answered_s > limit_s:
                    return (
                        f"it hung: its hook answered nothing for {limit_s:g} s: {error}"
                    )
            await asyncio.sleep(self.ask_s)
