"""What is seen of a replica from outside: that it becomes ready, that its share is proven, and that it hangs."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from agents.base.device import DeviceError
from agents.base.waits import first
from agents.processes.records import Record, Records
from agents.processes.templates import Server
from agents.replicas.adapters import Adapter, Endpoint, warm_up
from agents.replicas.replica import Hooks, ReplicaProcess, listens

FIRST_ASK_S = 0.05
MAX_ASK_S = 0.25
"""Between two questions for readiness, which double from the first; so much later is its traffic at most."""
HUNG_QUESTIONS = 6
"""Questions in a row that a ready replica's server leaves unanswered until it counts as hung."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaWatch:
    """Asks the servers of a node's replicas."""

    adapters: dict[Server, Adapter]
    records: Records[Record]
    session: aiohttp.ClientSession
    hooks: Hooks
    now_s: Callable[[], float]

    async def watch(self, each: ReplicaProcess) -> str:
        """Why a ready replica serves no more: it has ended, or hung."""
        assert each.process is not None
        return await first(each.process.wait(), self._hung(each)) or ""

    async def _hung(self, each: ReplicaProcess) -> str:
        """Return when its server has answered nothing for too long, not even a no. One that is busy answers late, so
        that each question has as long as there is between two."""
        limit_s = each.record.template.hung_after_s / HUNG_QUESTIONS
        adapter = self.adapter(each)
        endpoint = self._endpoint(each)
        unanswered = 0
        while unanswered < HUNG_QUESTIONS:
            asked_s = self.now_s()
            # One that drains is ended by its drain's own limits.
            is_asked = each.state == "ready"
            is_alive = not is_asked or await adapter.is_alive(endpoint, limit_s=limit_s)
            unanswered = 0 if is_alive else unanswered + 1
            await asyncio.sleep(max(0.0, limit_s - (self.now_s() - asked_s)))
        spent_s = each.record.template.hung_after_s
        return f"it hung: its server answered none of {HUNG_QUESTIONS} questions in {spent_s:g} s"

    async def is_asleep(self, each: ReplicaProcess) -> bool:
        """Whether its server sleeps. Raises DeviceError where it does not say so for as long as a start may take."""
        if not each.record.template.can_sleep:
            return False
        limit_s = each.record.template.start_limit_s
        answer = await first(self._ask_asleep(each), limit_s=limit_s)
        if answer is None:
            raise DeviceError("it does not say whether it sleeps")
        return answer

    async def _ask_asleep(self, each: ReplicaProcess) -> bool:
        adapter, endpoint = self.adapter(each), self._endpoint(each)
        while True:
            answer = await adapter.is_asleep(endpoint)
            if answer is not None:
                return answer
            await asyncio.sleep(MAX_ASK_S)

    async def come_up(self, each: ReplicaProcess) -> str:
        """Why it does not become ready; empty = it is."""
        assert each.process is not None
        limit_s = each.record.template.start_limit_s
        said = await first(each.process.wait(), self._bring_up(each), limit_s=limit_s)
        return (
            f"it was not ready within {limit_s:g} s: {each.message or each.pending}"
            if said is None
            else said
        )

    async def _bring_up(self, each: ReplicaProcess) -> str:
        """Readiness, warm-up and proof; why it must not take traffic, empty = it may."""
        assert each.process is not None
        await each.process.placed()
        adapter = self.adapter(each)
        endpoint = self._endpoint(each)
        try:
            # In this order: a server that opens the GPU with its first request can prove its share only after that.
            pids = await self._ask_until_ready(each, adapter, endpoint)
            if each.warm_up is not None:
                each.message = "it warms up"
                await warm_up(self.session, endpoint.url, each.warm_up)
            each.sm_count = await adapter.sm_count(endpoint)
            # What has its GPUs to itself has no share to prove.
            if each.record.gpus:
                return ""
            return await self.hooks.prove(each.proof(pids))
        except (DeviceError, OSError) as error:
            return str(error)

    async def _ask_until_ready(
        self, each: ReplicaProcess, adapter: Adapter, endpoint: Endpoint
    ) -> tuple[int, ...]:
        """Its processes, when it is ready and one of them is who answers."""
        assert each.process is not None
        port = each.record.ports[0]
        wait_s = FIRST_ASK_S
        while True:
            is_ready = await adapter.is_ready(endpoint)
            if is_ready:
                pids = await asyncio.to_thread(each.process.members)
                if await asyncio.to_thread(listens, pids, port):
                    return pids
            each.message = (
                f"port {port} is answered by another process"
                if is_ready
                else "not ready"
            )
            await asyncio.sleep(wait_s)
            # Short at first, since some servers are ready within moments.
            wait_s = min(MAX_ASK_S, 2.0 * wait_s)

    def adapter(self, each: ReplicaProcess) -> Adapter:
        """How its server is spoken to."""
        return self.adapters[each.record.template.server]

    def _endpoint(self, each: ReplicaProcess) -> Endpoint:
        return each.endpoint(self.records)
