"""Commands that a node must not carry out."""

import pytest
from msgspec.structs import replace

from agents.base.protocol import NodeCommand, TaskCommand
from agents.enforce.admission import missing_gpus, objections
from tests.agents.factories import (
    a_command,
    a_gpu,
    a_replica,
    a_task,
    an_empty_gpu,
    on_gpu,
)

GPUS = (an_empty_gpu(0), an_empty_gpu(1))


def a_pair(*, tasks: tuple[TaskCommand, ...] = (), **changes: float) -> NodeCommand:
    return on_gpu(a_replica("a"), a_replica("b", **changes), tasks=tasks)  # type: ignore[arg-type]


ALL_EACH = a_gpu(a_replica("a", sm_percent=100.0), a_replica("b", sm_percent=100.0))


@pytest.mark.parametrize(
    "command",
    [
        a_pair(sm_percent=50.0),
        # In the host's memory a task takes nothing of the GPU.
        a_pair(tasks=(a_task(memory_mib=3500.0, sm_percent=90.0, is_resident=False),)),
        a_command(replace(ALL_EACH, is_capped=False)),
        # A task may be called like a replica.
        a_command(a_gpu(a_replica("x"), tasks=(a_task("x"),))),
    ],
)
def test_nothing_speaks_against_a_command_that_fits(command: NodeCommand) -> None:
    assert objections(command, "n1", GPUS) == ()


def test_the_last_digit_of_a_sum_is_no_objection() -> None:
    # 0.30000000000000004
    parts = a_replica("a", memory_mib=0.1), a_replica("b", memory_mib=0.2)
    gpus = (an_empty_gpu(memory_mib=0.3),)
    assert objections(on_gpu(*parts), "n1", gpus) == ()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (a_command(node="other"), "node other"),
        (a_command(a_gpu(index=2)), "no GPU 2"),
        (a_command(replace(a_gpu(), gpu_type="T4")), "not a T4"),
        (a_pair(memory_mib=3001.0), "4000 MiB"),
        (a_pair(sm_percent=60.0), "add up to 110"),
        (a_command(ALL_EACH), "add up to 200"),
        (a_command(a_gpu(a_replica()), a_gpu(a_replica(), index=1)), "named 2 times"),
        (a_pair(tasks=(a_task(memory_mib=2001.0),)), "4000 MiB"),
        (a_pair(tasks=(a_task(sm_percent=10.0),)), "add up to 110"),
        (
            a_command(a_gpu(tasks=(a_task(),)), a_gpu(tasks=(a_task(),), index=1)),
            "task t1 is named 2 times",
        ),
        (a_command(a_gpu(tasks=(a_task(),), index=2)), "no GPU 2"),
        (a_command(a_gpu(), a_gpu()), "GPU 0 is named 2 times"),
        (NodeCommand(node="n1", generation=1, gpus=(a_gpu(a_replica()),)), "no route"),
    ],
)
def test_each_misfit_is_named(command: NodeCommand, words: str) -> None:
    (first, *_) = objections(command, "n1", GPUS)
    assert words in first


def test_too_many_replicas_are_named() -> None:
    (only,) = objections(a_pair(), "n1", (an_empty_gpu(0, max_replicas=1),))
    assert "takes 1 replicas" in only


def test_a_gpu_that_is_missing_beside_others_is_said_and_no_objection() -> None:
    command = a_command(a_gpu(a_replica("a")), a_gpu(a_replica("b"), index=2))
    assert objections(command, "n1", GPUS) == ()
    assert missing_gpus(command, GPUS) == ("there is no GPU 2; this node has [0, 1]",)
    # None of its GPUs is here: it is for another machine.
    (only,) = objections(a_command(a_gpu(index=2)), "n1", GPUS)
    assert only == "there is no GPU 2; this node has [0, 1]"
