"""How long replicas took from their start until they were ready: what the control plane keeps room for meanwhile.

Only what this agent started counts: of what an earlier one started the beginning is not known.
"""

from dataclasses import dataclass, field

from agents.base.device import NodeState, RunningReplica
from agents.base.protocol import MAX_LAUNCHES, LaunchTime
from agents.base.successors import base_id


@dataclass(slots=True)
class LaunchTimer:
    """Each launch is told once, when its replica is seen ready for the first time."""

    _begun_s: dict[str, float] = field(default_factory=dict)
    """By id of the replica; those that have not been ready yet."""
    _found: list[LaunchTime] = field(default_factory=list)

    def start(self, replica: str, now_s: float) -> None:
        """A launch begins; one that begins again counts from now on."""
        self._begun_s[replica] = now_s

    def look(self, state: NodeState, now_s: float) -> None:
        """Note which of them are ready by now, and forget those that will not be."""
        begun_s = self._begun_s
        self._begun_s = {}
        for gpu in state.gpus:
            for each in gpu.replicas:
                since_s = begun_s.get(each.id)
                # An earlier agent started it, or it was ready before.
                if since_s is None:
                    continue
                if each.state == "starting":
                    self._begun_s[each.id] = since_s
                elif each.state == "ready":
                    seconds = now_s - since_s
                    self._note(each, gpu.index, seconds)

    def _note(
        self,
        replica: RunningReplica,
        gpu_index: int,
        seconds: float,
    ) -> None:
        # The clock may have been set back meanwhile.
        seconds = max(0.0, seconds)
        launch = LaunchTime(
            replica=base_id(replica.id),
            service=replica.service,
            gpu_index=gpu_index,
            seconds=seconds,
        )
        self._found.append(launch)
        del self._found[:-MAX_LAUNCHES]

    def take(self) -> tuple[LaunchTime, ...]:
        """All since the last call."""
        found = tuple(self._found)
        self._found.clear()
        return found
