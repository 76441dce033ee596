"""Commands that a node must not carry out."""

import pytest
from msgspec.structs import replace

from agents.base.protocol import GpuCommand, NodeCommand
from agents.enforce.admission import objections
from tests.agents.factories import a_command, a_gpu, a_replica, a_task, an_empty_gpu

GPUS = (an_empty_gpu(0), an_empty_gpu(1))


def test_nothing_speaks_against_a_command_that_fits() -> None:
    assert (
        objections(
            a_command(a_gpu(a_replica("r1"), a_replica("r2", sm_percent=50.0))),
            "n1",
            GPUS,
        )
        == ()
    )


def test_a_task_in_the_hosts_memory_takes_nothing_of_the_gpu() -> None:
    away = a_task(memory_mib=3500.0, sm_percent=90.0, is_resident=False)
    assert (
        objections(a_command(a_gpu(a_replica("r1"), tasks=(away,))), "n1", GPUS) == ()
    )


def test_without_sm_limits_replicas_may_have_all_sms_each() -> None:
    gpu = a_gpu(a_replica("a", sm_percent=100.0), a_replica("b", sm_percent=100.0))
    assert objections(a_command(gpu), "n1", GPUS)
    assert objections(a_command(replace(gpu, is_capped=False)), "n1", GPUS) == ()


def test_a_task_may_be_called_like_a_replica() -> None:
    assert (
        objections(a_command(a_gpu(a_replica("x"), tasks=(a_task("x"),))), "n1", GPUS)
        == ()
    )


def test_the_last_digit_of_a_sum_is_no_objection() -> None:
    command = a_command(
        a_gpu(a_replica("a", memory_mib=0.1), a_replica("b", memory_mib=0.2))
    )  # 0.30000000000000004
    assert objections(command, "n1", (an_empty_gpu(memory_mib=0.3),)) == ()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (a_command(node="other"), "node other"),
        (a_command(a_gpu(index=2)), "no GPU 2"),
        (
            a_command(
                GpuCommand(index=0, gpu_type="T4", clock_mhz=1.0, power_cap_w=70.0)
            ),
            "not a T4",
        ),
        (
            a_command(
                a_gpu(
                    a_replica("a", memory_mib=3000.0), a_replica("b", memory_mib=1001.0)
                )
            ),
            "4000 MiB",
        ),
        (
            a_command(
                a_gpu(a_replica("a", sm_percent=60.0), a_replica("b", sm_percent=50.0))
            ),
            "add up to 110",
        ),
        (
            a_command(a_gpu(a_replica("a")), a_gpu(a_replica("a"), index=1)),
            "named 2 times",
        ),
        (
            a_command(
                a_gpu(a_replica(memory_mib=3000.0), tasks=(a_task(memory_mib=1001.0),))
            ),
            "4000 MiB",
        ),
        (
            a_command(
                a_gpu(a_replica(sm_percent=60.0), tasks=(a_task(sm_percent=50.0),))
            ),
            "add up to 110",
        ),
        (
            a_command(
                a_gpu(tasks=(a_task("t"),)), a_gpu(tasks=(a_task("t"),), index=1)
            ),
            "task t is named 2 times",
        ),
        (a_command(a_gpu(tasks=(a_task(),), index=2)), "no GPU 2"),
        (a_command(a_gpu(), a_gpu()), "GPU 0 is named 2 times"),
        (
            NodeCommand(node="n1", generation=1, gpus=(a_gpu(a_replica("a")),)),
            "no route",
        ),
    ],
)
def test_each_misfit_is_named(command: NodeCommand, words: str) -> None:
    (first, *_) = objections(command, "n1", GPUS)
    assert words in first


def test_too_many_replicas_are_named() -> None:
    command = a_command(a_gpu(a_replica("a"), a_replica("b")))
    (only,) = objections(command, "n1", (an_empty_gpu(0, max_replicas=1),))
    assert "takes 1 replicas" in only
