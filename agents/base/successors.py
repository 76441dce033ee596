"""Successors: how a replica gets another batch whose server takes no other batch while it runs.

The control plane keeps a replica's id when only its batch changes, and two processes cannot have one id. So the node
starts a successor next to it under a name of its own, `r1~8` for `r1` at batch 8, and the shadow switch of
`agents.enforce.diff` does the rest. Nothing is remembered: who is whose successor stands in the id.

    with_successors(wanted, actual)    -> the command, with the ids that its replicas have, or will have, here
    base_id("r1~8")                    -> "r1"
    as_commanded(readings)             -> one reading per replica, under the id that the control plane knows
"""

import re
from collections.abc import Collection, Iterable, Mapping

import msgspec

from agents.base.device import NodeState, RunningReplica
from agents.base.protocol import (
    GpuCommand,
    NodeCommand,
    ReplicaCommand,
    ReplicaReading,
    TokenCounts,
)

_SUCCESSOR = re.compile(r"(.+)~[0-9]+")
_FIRST_REPORTED = ("ready", "starting", "draining", "asleep", "failed")


def base_id(replica_id: str) -> str:
    """The id that the control plane gave."""
    found = _SUCCESSOR.fullmatch(replica_id)
    return found[1] if found else replica_id


def with_successors(wanted: NodeCommand, actual: NodeState) -> NodeCommand:
    """The command with other ids where a running replica cannot take the wanted batch, or a successor already has."""
    running = {each.id: each for gpu in actual.gpus for each in gpu.replicas}
    if all(
        each.has_live_batch and base_id(each.id) == each.id for each in running.values()
    ):
        return wanted
    here = {
        gpu.index: frozenset(each.id for each in gpu.replicas) for gpu in actual.gpus
    }
    gpus = tuple(
        _renamed(gpu, running, here.get(gpu.index, frozenset())) for gpu in wanted.gpus
    )
    return msgspec.structs.replace(wanted, gpus=gpus)


def _renamed(
    gpu: GpuCommand, running: Mapping[str, RunningReplica], here: Collection[str]
) -> GpuCommand:
    replicas = tuple(
        msgspec.structs.replace(each, id=_id_here(each, running, here))
        for each in gpu.replicas
    )
    return msgspec.structs.replace(gpu, replicas=replicas)


def _id_here(
    want: ReplicaCommand, running: Mapping[str, RunningReplica], here: Collection[str]
) -> str:
    """The id of a replica here that has the wanted batch or takes it, also of a failed one that waits; else free."""
    mine = (running[each] for each in here if base_id(each) == want.id)
    for each in sorted(mine, key=lambda each: (each.state == "failed", each.id)):
        is_leaving = each.state == "draining" and not each.can_return
        if not is_leaving and (each.has_live_batch or each.batch == want.batch):
            return each.id
    # A replica that has the id and could take any batch is replaced for another reason, under its own id.
    if want.id not in running or running[want.id].has_live_batch:
        return want.id
    return f"{want.id}~{want.batch}"


def as_commanded(readings: Iterable[ReplicaReading]) -> tuple[ReplicaReading, ...]:
    """One reading per replica that was commanded: who is ready speaks for it, what all of them did is added up."""
    found: dict[str, list[ReplicaReading]] = {}
    for each in readings:
        found.setdefault(base_id(each.id), []).append(each)
    return tuple(_together(replica_id, parts) for replica_id, parts in found.items())


def _together(replica_id: str, parts: list[ReplicaReading]) -> ReplicaReading:
    reported = min(parts, key=lambda each: (_FIRST_REPORTED.index(each.state), each.id))
    batches = sum(each.batches for each in parts)
    busy_ms = sum(each.batches * each.execution_ms for each in parts)
    return msgspec.structs.replace(
        reported,
        id=replica_id,
        batches=batches,
        requests=sum(each.requests for each in parts),
        execution_ms=busy_ms / batches if batches else 0.0,
        tokens=_sum_of_tokens(each.tokens for each in parts),
    )


def _sum_of_tokens(parts: Iterable[TokenCounts | None]) -> TokenCounts | None:
    """What several counted together; None where none did."""
    known = [each for each in parts if each is not None]
    return TokenCounts(*map(sum, zip(*known, strict=True))) if known else None
