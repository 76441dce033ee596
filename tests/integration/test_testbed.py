"""The testbed with fake GPUs as docker-compose.yml runs it, but as processes: service, training, and faults.

It takes some 20 s of two cores: ten programs are started, as the file starts them.
"""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.agents.fakes.nvml.fake_gpus import FakeGpus
from tests.agents.fakes.nvml.fixtures import library
from tests.agents.gpu_nodes import inputs
from tests.app.runner import cli
from tests.integration.fault_harness import rows
from tests.integration.testbed import Composed, until_healthy
from tests.ports import alone
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

__all__ = ("library",)

QUICK = {
    "kind": "Policy",
    "metadata": {"name": "default"},
    "spec": {"policy": "hetsev_greedy", "period_s": 1.0},
}
"""It plans in milliseconds on a slow machine, too."""


@pytest.fixture
def bed(database: str, tmp_path: Path, library: Path) -> Iterator[Composed]:
    with alone("workers on an agent's own ports"):
        made = Composed(folder=tmp_path, database=database, library=library)
        try:
            yield made
        finally:
            made.stop()


def bring_up(bed: Composed) -> None:
    """`docker compose --profile fake-gpus up`, without its load, in the order that `depends_on` asks for."""
    for name in ("secrets", "migrate"):
        bed.run(name)
    bed.start("control-plane")
    until_healthy(bed, "control-plane")
    address = f"{bed.address('control-plane')}/api/v1/policies/default"
    headers = {"Authorization": f"Bearer {bed.admin_token()}", "If-Match": "*"}
    assert (
        httpx2.put(address, json=QUICK, headers=headers, timeout=PATIENCE_S).status_code
        == 200
    )
    bed.run("deploy")
    for name in ("agent-v100", "agent-t4"):
        bed.start(name)
    bed.run("deploy-h100")
    bed.start("agent-h100")
    until_healthy(bed, "agent-h100")


def answers(bed: Composed) -> bool:
    """Whether a request through the node's router comes back with what its own input asks for."""
    address = f"{bed.address('agent-h100')}/v2/models/label/infer"
    # It waits for the first replica.
    answer = httpx2.post(address, json=inputs(41.0), timeout=PATIENCE_S)
    return answer.status_code == 200 and bool(
        answer.json()["outputs"][0]["data"] == [42.0]
    )


def gpus_of_label(bed: Composed) -> set[str]:
    """GPUs that the plan in force gives the service."""
    query = (
        "SELECT r.gpu FROM plan p JOIN plan_replica r ON r.plan_id = p.id "
        "WHERE p.state = 'target' AND r.service = 'label'"
    )
    return {row[0] for row in rows(bed.database, query)}


def events(bed: Composed, kind: str) -> list[str]:
    return [
        str(row[0])
        for row in rows(
            bed.database, f"SELECT reason FROM event WHERE kind = '{kind}' ORDER BY id"
        )
    ]


def problems(bed: Composed) -> str:
    ((found,),) = rows(
        bed.database,
        "SELECT array_to_string(problems, '; ') FROM node WHERE id = 'h100-1'",
    )
    return str(found)


def logs(bed: Composed, *words: str) -> str:
    """What `plimsoll logs` prints, or why it prints nothing."""
    environment = {
        "PLIMSOLL_URL": bed.address("control-plane"),
        "PLIMSOLL_TOKEN": bed.admin_token(),
    }
    found = cli("logs", *words, api=None, environment=environment)
    return found.out or found.err


@pytest.mark.thorough
def test_a_service_and_training_run_on_fake_gpus_and_leave_the_one_that_is_lost(
    bed: Composed,
) -> None:
    bring_up(bed)
    until(lambda: answers(bed))
    until(
        lambda: (
            rows(
                bed.database,
                "SELECT 1 FROM task WHERE name = 'teach' AND done_iterations > 0",
            )
            != []
        )
    )
    # What a replica and a task print when they are there.
    until(lambda: '"url":"http://127.0.0.1:' in logs(bed, "label"))
    until(lambda: "of 50000" in logs(bed, "task/teach", "--tail", "3"))

    (place,) = gpus_of_label(bed)
    index = int(place.rpartition("-")[2])
    gpus = FakeGpus.found(bed.state_of("agent-h100") / "fake-gpus")
    assert gpus is not None and place == f"h100-1/gpu-{index}"

    # 700 W are kept by the catalogue; the board draws up to 1050, in proportion to its clock, whatever its limit is.
    bed.fake_node("fault", "over-cap", str(index))
    until(lambda: "over its power cap of 700" in problems(bed))
    until(lambda: 0 < gpus.gpu(index).lock_high <= 1980 * 700 / 1050)
    bed.fake_node("heal")

    bed.fake_node("fault", "lost", str(index))
    until(lambda: events(bed, "GpuFailed") != [])
    assert "fell off the bus" in events(bed, "GpuFailed")[0]
    until(lambda: gpus_of_label(bed) == {f"h100-1/gpu-{1 - index}"})
    until(lambda: answers(bed))
    assert f"GPU {index} " in bed.fake_node("show") and "LOST" in bed.fake_node("show")
    bed.fake_node("heal")
    until(lambda: events(bed, "GpuRecovered") == [f"GPU {index} accepts work again"])


@pytest.mark.thorough
@pytest.mark.parametrize("is_known", [True, False])
def test_a_node_that_starts_without_one_of_its_gpus_serves_on_the_other(
    bed: Composed, is_known: bool
) -> None:
    bring_up(bed)
    until(lambda: answers(bed))
    (place,) = gpus_of_label(bed)
    index = int(place.rpartition("-")[2])
    bed.end("agent-h100")
    bed.fake_node("fault", "lost", str(index))
    state = bed.state_of("agent-h100")
    if not is_known:
        # As after a move of the state directory: nothing is known of a GPU that does not answer.
        (state / "gpus.json").unlink()
    bed.start("agent-h100")
    until(lambda: gpus_of_label(bed) == {f"h100-1/gpu-{1 - index}"})
    until(lambda: answers(bed))
    (said,) = events(bed, "GpuFailed")
    assert ("fell off the bus" if is_known else "not reported by its agent") in said
    assert f"GPU {index} " in problems(bed)
    bed.fake_node("heal")
    if not is_known:
        until(lambda: "restart the agent" in problems(bed))
        bed.end("agent-h100")
        bed.start("agent-h100")
    until(lambda: events(bed, "GpuRecovered") == [f"GPU {index} accepts work again"])


@pytest.mark.thorough
def test_a_gpu_that_an_xid_condemned_is_acquitted_without_a_restart(
    bed: Composed,
) -> None:
    bring_up(bed)
    until(lambda: answers(bed))
    (place,) = gpus_of_label(bed)
    index = place.rpartition("-")[2]
    bed.fake_node("fault", "xid", index, "94")
    until(lambda: "Xid 94" in problems(bed))
    bed.fake_node("fault", "xid", index, "109")
    until(lambda: events(bed, "GpuFailed") != [])
    assert events(bed, "GpuFailed")[0].startswith(
        f"GPU {index}: the driver told Xid 109; NVIDIA's catalogue asks to reset the GPU"
    )
    environment = {
        "PLIMSOLL_URL": bed.address("control-plane"),
        "PLIMSOLL_TOKEN": bed.admin_token(),
    }
    words = f"acquit h100-1 --gpu {index}"
    assert cli(words, api=None, environment=environment).code == 0
    until(lambda: events(bed, "GpuRecovered") == [f"GPU {index} accepts work again"])
    again = cli(words, api=None, environment=environment)
    assert "none is to be acquitted" in again.out
    assert "Xid" not in problems(bed)
