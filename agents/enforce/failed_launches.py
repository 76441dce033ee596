"""Which launches failed since the last observation: what the control plane needs to know to place replicas elsewhere.

A launch has failed where the device refused it, or its replica failed before it was ready for HEALTHY_S. A replica that
served for longer and then ended is restarted where it is, and says nothing about its GPU.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from agents.base.device import NodeState, RunningReplica
from agents.base.protocol import MAX_LAUNCH_FAILURES, LaunchFailure
from agents.base.successors import base_id

HEALTHY_S = 10.0
"""A crash loop is often ready for a moment, until the first request needs memory."""


@dataclass(slots=True)
class FailedLaunches:
    """Counted once each: a replica stays failed, and is seen so, until it is started again."""

    _found: list[LaunchFailure] = field(default_factory=list)
    _ready_since_s: dict[str, float] = field(default_factory=dict)
    _failed: set[str] = field(default_factory=set)
    """Replicas whose last launch was judged."""

    def look(self, state: NodeState, wanted: Collection[str], now_s: float) -> None:
        """Judge what is there; `wanted`: ids of the command's replicas, as others may fail while they end."""
        for gpu in state.gpus:
            # On a GPU that does not answer everything fails, and the plan leaves it anyway.
            for each in gpu.replicas if gpu.healthy else ():
                if each.state == "ready":
                    self._ready_since_s.setdefault(each.id, now_s)
                elif each.state == "failed" and each.id not in self._failed:
                    self._failed.add(each.id)
                    self._judge(each, gpu.index, wanted, now_s)
        present = {each.id for gpu in state.gpus for each in gpu.replicas}
        self._failed &= present
        self._ready_since_s = {
            key: since_s
            for key, since_s in self._ready_since_s.items()
            if key in present
        }

    def _judge(
        self,
        replica: RunningReplica,
        gpu_index: int,
        wanted: Collection[str],
        now_s: float,
    ) -> None:
        # One that was never seen ready was up for 0 s.
        ready_s = now_s - self._ready_since_s.pop(replica.id, now_s)
        if ready_s < HEALTHY_S and base_id(replica.id) in wanted:
            self.note(replica.id, replica.service, gpu_index, "it ended by itself")

    def start(self, replica_id: str) -> None:
        """A launch begins: it may fail again."""
        self._failed.discard(replica_id)
        self._ready_since_s.pop(replica_id, None)

    def note(self, replica_id: str, service: str, gpu_index: int, detail: str) -> None:
        """One more; of too many the oldest are forgotten, since the newest say best what goes on."""
        failure = LaunchFailure(
            replica=base_id(replica_id),
            service=service,
            gpu_index=gpu_index,
            detail=detail,
        )
        self._found = [*self._found, failure][-MAX_LAUNCH_FAILURES:]

    def take(self, problems: Sequence[str]) -> tuple[LaunchFailure, ...]:
        """All since the last call, each with the device's own words on its replica where it has some."""
        found, self._found = self._found, []
        # The device's own words name the cause; ours often say only that it ended.
        return tuple(
            structs.replace(
                each,
                detail=next(
                    (text for text in problems if _mentions(text, each.replica)),
                    each.detail,
                ),
            )
            for each in found
        )


def _mentions(text: str, replica: str) -> bool:
    """Whether a problem is about this replica, or about its successor (`…~8`), and not about one like `…10`."""
    return re.search(rf"(?<![\w.-]){re.escape(replica)}(?![\w-])", text) is not None
