"""A Pod as the API has it: whether it runs, why it does not, and what to do."""

import msgspec

from agents.kubernetes.api import ObjectMetadata


class _Terminated(msgspec.Struct, rename="camel"):
    exit_code: int = 0
    reason: str = ""
    message: str = ""


class _Waiting(msgspec.Struct):
    reason: str = ""
    message: str = ""


class _State(msgspec.Struct):
    terminated: _Terminated | None = None
    waiting: _Waiting | None = None
    running: dict[str, object] | None = None


class _ContainerStatus(msgspec.Struct):
    state: _State = msgspec.field(default_factory=_State)


class _Condition(msgspec.Struct):
    type: str
    status: str = ""
    reason: str = ""
    message: str = ""


class _ClaimStatus(msgspec.Struct, rename="camel"):
    resource_claim_name: str | None = None


class _Status(msgspec.Struct, rename="camel"):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[_Condition] | None = None
    container_statuses: list[_ContainerStatus] | None = None
    resource_claim_statuses: list[_ClaimStatus] | None = None


class _Container(msgspec.Struct):
    image: str = ""


class _Spec(msgspec.Struct):
    containers: list[_Container] = []


class Pod(msgspec.Struct):
    """A Pod as the API has it, as far as it matters."""

    metadata: ObjectMetadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def image(self) -> str:
        """What its first container runs."""
        return self.spec.containers[0].image if self.spec.containers else ""

    @property
    def gpu_claim(self) -> str:
        """The ResourceClaim by which it has GPUs; empty: there is none, or none yet."""
        found = self.status.resource_claim_statuses or ()
        return next((each.resource_claim_name or "" for each in found), "")

    @property
    def _state(self) -> _State:
        found = self.status.container_statuses
        return found[0].state if found else _State()

    @property
    def is_running(self) -> bool:
        """Whether its program has been started, and has not ended as far as kubelet knows."""
        return self._state.running is not None

    @property
    def is_ready(self) -> bool:
        """Whether its server listens, as kubelet has seen it."""
        conditions = self.status.conditions or ()
        return any(
            each.type == "Ready" and each.status == "True" for each in conditions
        )

    @property
    def is_pending(self) -> bool:
        """Whether its program is still to be started."""
        return not self.is_over and not self.is_running

    @property
    def is_over(self) -> bool:
        """Whether none of it will ever run again."""
        return self.status.phase in ("Failed", "Succeeded")

    @property
    def exit_code(self) -> int | None:
        """Negative: the signal that ended its program; None: it has not ended, or never ran."""
        ended = self._state.terminated
        if ended is None:
            return None
        # Container runtimes count from 128 for signals, as shells do.
        return (
            128 - ended.exit_code if 128 < ended.exit_code <= 192 else ended.exit_code
        )

    @property
    def why_over(self) -> str:
        """Why kubelet ended it; empty: it ended by itself, or has not."""
        if self.status.reason == "Evicted":
            return (
                f"it was evicted: {self.status.message.strip()} Give the node room, or its template's `resources` what "
                "it really needs"
            )
        ended = self._state.terminated
        if ended is not None and ended.reason == "OOMKilled":
            return "it was killed because it took more memory than `resources` of its template allow"
        return (
            f"{self.status.reason}: {self.status.message}" if self.status.reason else ""
        )

    @property
    def pending(self) -> str:
        """What keeps it from running, and what to do; empty: nothing that kubelet or scheduler know of."""
        for each in self.status.conditions or ():
            if each.type == "PodScheduled" and each.status == "False":
                return f"the cluster's scheduler finds no place for it: {each.message}"
        waiting = self._state.waiting
        if waiting is None or waiting.reason in (
            "",
            "ContainerCreating",
            "PodInitializing",
        ):
            return ""
        said = (
            f"{waiting.reason}: {waiting.message}"
            if waiting.message
            else waiting.reason
        )
        if "Image" in waiting.reason or waiting.reason == "RegistryUnavailable":
            return (
                f"its image cannot be pulled ({said}); see that the template's `image` exists, and that the node may "
                "pull it"
            )
        return f"its container cannot be created ({said})"
