"""The wire contract: whatever is on it has bounds, which are in the contract itself."""

from collections.abc import Iterator

import msgspec
import pytest
from msgspec import inspect

from agents.base.protocol import NodeCommand, Observation, SyncReply
from tests.agents.factories import a_replica, a_task, on_gpu


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
    "at", ["replicas.batch", "tasks.batch", "gpus.index", "sequence"]
)
def test_a_number_of_four_hundred_digits_does_not_pass_the_wire(at: str) -> None:
    name, _, field = at.partition(".")
    digits = "9" * 400
    body = f'[{{"{field}": {digits}}}]' if field else digits
    with pytest.raises(msgspec.ValidationError, match=r"Expected `int` <="):
        msgspec.json.decode(f'{{"{name}": {body}}}', type=Observation)
    with pytest.raises(msgspec.ValidationError, match=r"Expected `int` <="):
        msgspec.json.decode(f'{{"repartition": [{digits}]}}', type=Observation)


def test_the_largest_command_that_a_plan_makes_passes_the_wire() -> None:
    # A job of a billion iterations of batch 65,536 that a dispatcher runs with batch 1.
    iterations = 65_536 * 10**9
    task = a_task(batch=1, iterations=iterations, done=iterations - 1.0)
    command = on_gpu(tasks=(task,))
    assert msgspec.convert(msgspec.to_builtins(command), NodeCommand) == command


def test_an_agent_that_knows_no_projects_takes_commands_of_the_default_one() -> None:
    default = on_gpu(a_replica(), tasks=(a_task(),))
    assert b"project" not in msgspec.json.encode(default)
    named = on_gpu(a_replica(project="a"), tasks=(a_task(project="b"),))
    # The ledger, or a control plane of before, names none in the default one.
    for command in (default, named):
        encoded = msgspec.json.encode(command)
        assert msgspec.json.decode(encoded, type=NodeCommand) == command


def test_commands_of_control_planes_that_knew_spares_are_taken() -> None:
    command = on_gpu(a_replica("r1", rate_rps=0.0))
    body = msgspec.json.encode(command)
    assert b"is_spare" not in body
    older = body.replace(b'"id":"r1",', b'"id":"r1","is_spare":true,')
    assert older != body
    (gpu,) = msgspec.json.decode(older, type=NodeCommand).gpus
    assert [each.id for each in gpu.replicas] == ["r1"]
