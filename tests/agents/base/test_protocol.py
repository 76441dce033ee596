"""The wire contract: whatever is on it has bounds, which are in the contract itself."""

from collections.abc import Iterator

import msgspec
import pytest
from msgspec import inspect

from agents.base.protocol import NodeCommand, Observation, SyncReply
from tests.agents.factories import a_command, a_gpu, a_replica, a_task


def leaves(kind: inspect.Type, path: str) -> Iterator[tuple[str, inspect.Type]]:
    """Every number, text and array of a message, with its path."""
    match kind:
        case inspect.StructType():
            for each in kind.fields:
                yield from leaves(each.type, f"{path}.{each.name}")
        case inspect.UnionType():
            for one in kind.types:
                yield from leaves(one, path)
        case inspect.TupleType():
            for one in kind.item_types:
                yield from leaves(one, f"{path}[]")
        case inspect.VarTupleType():
            yield path, kind
            yield from leaves(kind.item_type, f"{path}[]")
        case inspect.IntType() | inspect.FloatType() | inspect.StrType():
            yield path, kind


def is_bounded(kind: inspect.Type) -> bool:
    match kind:
        case inspect.IntType() | inspect.FloatType():
            has_least = kind.ge is not None or kind.gt is not None
            return has_least and (kind.le is not None or kind.lt is not None)
        case inspect.StrType() | inspect.VarTupleType():
            return kind.max_length is not None
    return False


@pytest.mark.parametrize("message", [Observation, SyncReply])
def test_numbers_and_texts_of_the_wire_have_bounds(
    message: type[msgspec.Struct],
) -> None:
    found = list(leaves(inspect.type_info(message), ""))
    assert len(found) > 10
    # What the control plane sends is bounded by its fleet; what comes from outside has to say how long it may be.
    lists = [path for path, kind in found if isinstance(kind, inspect.VarTupleType)]
    unbounded = [path for path, kind in found if not is_bounded(kind)]
    assert [
        path for path in unbounded if message is Observation or path not in lists
    ] == []


@pytest.mark.parametrize(
    "field",
    [
        "replicas[0].batch",
        "tasks[0].batch",
        "sequence",
        "gpus[0].index",
        "repartition[0]",
    ],
)
def test_a_number_of_four_hundred_digits_does_not_pass_the_wire(field: str) -> None:
    name, _, rest = field.partition("[0]")
    part = f'{{"{rest[1:]}": {"9" * 400}}}' if rest else "9" * 400
    body = f'{{"{name}": {f"[{part}]" if name != "sequence" else part}}}'
    with pytest.raises(msgspec.ValidationError, match=r"Expected `int` <="):
        msgspec.json.decode(body, type=Observation)


def test_the_largest_command_that_a_plan_makes_passes_the_wire() -> None:
    # A job of a billion iterations of batch 65,536 that a dispatcher runs with batch 1.
    task = {
        "name": "t",
        "kind": "offline",
        "network": "n",
        "batch": 1,
        "sm_percent": 100.0,
        "memory_mib": 1.0,
        "iterations": 65_536 * 10**9,
        "done_iterations": 65_536.0 * 10**9 - 1.0,
    }
    gpu = {"index": 0, "gpu_type": "T4", "clock_mhz": 0.0, "power_cap_w": 0.0}
    command = {"node": "n1", "generation": 1, "gpus": [{**gpu, "tasks": [task]}]}
    assert msgspec.convert(command, NodeCommand).gpus[0].tasks[0].batch == 1


def test_an_agent_that_knows_no_projects_takes_commands_of_the_default_one() -> None:
    gpu = a_gpu(a_replica(), tasks=(a_task(),))
    command = a_command(gpu)
    assert b"project" not in msgspec.json.encode(command)
    named = a_command(a_gpu(a_replica(project="a"), tasks=(a_task(project="b"),)))
    assert msgspec.json.decode(msgspec.json.encode(named), type=NodeCommand) == named
    # Its ledger, or a control plane of before, names none.
    assert (
        msgspec.json.decode(msgspec.json.encode(command), type=NodeCommand) == command
    )
