"""What facts mean to the doctor, fact by fact."""

import os
from dataclasses import replace

import pytest

from agents.base.device import DeviceError
from agents.doctor import checks_gpu, checks_host, checks_plane, facts
from agents.doctor.types import (
    INSTALL,
    Asked,
    ControlPlaneFacts,
    DriverFacts,
    FileFacts,
    GpuFacts,
    Here,
    Level,
    ModeFacts,
    NodeFinding,
    PortFacts,
    ProcessFacts,
    SharedMemoryFacts,
    StateFacts,
    SystemdFacts,
)
from agents.gpu.nvml.lacks import Lack, LackKind
from agents.gpu.nvml.types import Capability
from agents.processes.user import WorkerUser
from tests.agents.doctor_nodes import NODE_DIRECTORY

GPU = GpuFacts(index=0, uuid="GPU-0", name="H100", memory_mib=81920.0, ability_count=9)
PROCESS = ProcessFacts(uid=990, user="plimsoll-agent", effective=0, ambient=0)
ASKED = Asked(url="http://plane", token="plim_x", node="n1")


@pytest.mark.parametrize(
    ("compute", "persistence", "uses_mps", "level"),
    [
        ("Default", "Enabled", True, "pass"),
        ("Exclusive_Process", "Enabled", True, "pass"),
        ("Exclusive_Process", "Enabled", False, "fail"),
        ("Prohibited", "Enabled", True, "fail"),
        ("Default", "Disabled", True, "warn"),
        ("[N/A]", "[N/A]", True, "pass"),
    ],
)
def test_modes(compute: str, persistence: str, uses_mps: bool, level: Level) -> None:
    facts = ModeFacts(by_uuid={"GPU-0": (compute, persistence)})
    assert checks_gpu.check_modes(GPU, facts, uses_mps=uses_mps).level == level


def test_modes_that_nobody_tells_are_no_failure() -> None:
    found = checks_gpu.check_modes(
        GPU, ModeFacts(problem="nvidia-smi cannot be run: No such file"), uses_mps=True
    )
    assert (found.level, "nvidia-smi cannot be run" in found.words) == ("skip", True)


@pytest.mark.parametrize(
    ("kind", "way_out"),
    [
        (LackKind.RIGHT_MISSING, "Clocks and power limits"),
        (LackKind.DRIVER_TOO_OLD, "newer driver"),
        (LackKind.PERSISTENCE_OFF, "run nvidia-persistenced"),
        (LackKind.DEVICE_BLOCKED, "give this process or container"),
        (LackKind.OTHER, "nothing to do"),
    ],
)
def test_what_a_gpu_lacks_is_said_with_cost_and_way_out(
    kind: LackKind, way_out: str
) -> None:
    lack = Lack(Capability.LIMIT_POWER, kind, "it says so", "could not: it says so")
    gpu = replace(GPU, lacks=(lack,))
    _, found = checks_gpu.check_gpu(gpu, DriverFacts(), gpu_type="", has_right=True)
    assert (found.level, found.words) == (
        "warn",
        "cannot limit power: it says so; power caps are not enforced on this GPU",
    )
    assert way_out in found.remedy


def state(**facts: object) -> StateFacts:
    return StateFacts(
        path=NODE_DIRECTORY, **{"free_mib": 5000.0, "owner_uid": 990, **facts}
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "level"),
    [
        (state(), "pass"),
        (state(exists=False, owner_uid=0), "pass"),
        (state(free_mib=1023.0), "warn"),
        (state(free_mib=63.0), "fail"),
        (state(owner_uid=0), "warn"),
        (state(problem="read-only"), "fail"),
    ],
)
def test_the_state_directory(facts: StateFacts, level: Level) -> None:
    assert next(checks_host.check_state(facts, PROCESS)).level == level


def test_a_closed_state_directory_is_not_taken_for_an_empty_one() -> None:
    found = list(
        checks_host.check_state(
            state(problem="/x cannot be written", is_closed=True), PROCESS
        )
    )
    assert [(each.check, each.level) for each in found] == [
        ("state dir", "fail"),
        ("agent", "skip"),
    ]


def test_every_lack_has_its_cost_or_its_way_out() -> None:
    assert set(checks_gpu.COSTS) == set(Capability)
    assert set(checks_gpu.WAYS_OUT) == set(LackKind) - {LackKind.NOT_TRIED}


def ports(free: int) -> NodeFinding:
    counted = PortFacts(free=free, first=21000, count=2000)
    return next(checks_host.check_ports(counted, is_agent_there=False))


@pytest.mark.parametrize(
    ("finding", "level"),
    [
        (checks_gpu.check_files(FileFacts(count=4)), "pass"),
        (checks_gpu.check_files(FileFacts(count=4, closed=("/dev/nvidia0",))), "fail"),
        (checks_host.check_shared_memory(SharedMemoryFacts(free_mib=1024.0)), "pass"),
        (checks_host.check_shared_memory(SharedMemoryFacts(free_mib=64.0)), "warn"),
        (checks_host.check_systemd(SystemdFacts(is_booted=True)), "warn"),
        (next(checks_host.check_process(PROCESS, Here(python="3.10.12"))), "fail"),
        (next(checks_host.check_process(PROCESS, Here(python="3.13.0rc1"))), "pass"),
        (ports(63), "warn"),
        (ports(64), "pass"),
    ],
)
def test_limits_of_the_rest(finding: NodeFinding, level: Level) -> None:
    assert (finding.level, bool(finding.remedy)) == (level, level != "pass")


@pytest.mark.parametrize("node", ["n1", "a" * 63, "a" * 64, "N1", "n1.lan", ""])
def test_names_of_nodes(node: str) -> None:
    facts = ControlPlaneFacts(problem="away")
    found = checks_plane.check_control_plane(facts, Asked(url="http://p", node=node))
    is_refused = "node name" in {each.check for each in found}
    assert is_refused == (node not in ("n1", "a" * 63))


@pytest.mark.parametrize(
    ("skew_s", "level"),
    [
        (None, "skip"),
        (0.0, "pass"),
        (-2.0, "pass"),
        (2.5, "warn"),
        (-60.0, "warn"),
        (61.0, "fail"),
        (-61.0, "fail"),
    ],
)
def test_clocks(skew_s: float | None, level: Level) -> None:
    facts = ControlPlaneFacts(ready_status=200, skew_s=skew_s, sync_status=422)
    (clock,) = [
        each
        for each in checks_plane.check_control_plane(facts, ASKED)
        if each.check == "clock"
    ]
    assert clock.level == level


@pytest.mark.parametrize(
    ("status", "level", "words"),
    [
        (422, "pass", "accepted, for node n1"),
        (400, "pass", "accepted, for node n1"),
        (401, "fail", "refused: unknown, revoked or expired"),
        (403, "fail", "refused: not that of node n1"),
        (503, "warn", "answered 503"),
    ],
)
def test_tokens(status: int, level: Level, words: str) -> None:
    facts = ControlPlaneFacts(ready_status=200, skew_s=0.0, sync_status=status)
    (token,) = [
        each
        for each in checks_plane.check_control_plane(facts, ASKED)
        if each.check == "token"
    ]
    assert (token.level, words in token.words) == (level, True)


def test_a_join_token_is_refused_for_a_report_and_good_for_enrolling() -> None:
    facts = ControlPlaneFacts(ready_status=200, skew_s=0.0, sync_status=403)
    asked = replace(ASKED, token="plim_join_" + "a" * 43)
    found = list(checks_plane.check_control_plane(facts, asked))
    assert [each.level for each in found if each.check == "token"] == ["pass"]


def test_a_node_whose_replicas_run_as_the_agents_own_user_is_warned() -> None:
    other = WorkerUser(
        name="w", uid=4711, gid=4711, groups=(), home="/", folders=NODE_DIRECTORY
    )
    (separate,) = checks_host.check_worker_user(other, ASKED)
    (same,) = checks_host.check_worker_user(None, ASKED)
    assert (separate.level, separate.words) == ("pass", "w (UID 4711)")
    assert (same.level, same.remedy.partition(",")[0]) == ("warn", INSTALL)
    asked_for = replace(ASKED, worker_user="root")
    assert list(checks_host.check_worker_user(None, asked_for)) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has users for projects")
def test_each_projects_user_is_named_and_mps_allows_none() -> None:
    asked = replace(
        ASKED, worker_user="nobody", project_users=(("a", "daemon"),), uses_mps=False
    )
    (found,) = checks_host.check_project_users(facts.read_project_users(asked))
    assert (found.level, found.words) == ("pass", "a as daemon (UID 1)")
    with pytest.raises(DeviceError, match="MPS serves one user per GPU"):
        facts.read_project_users(replace(asked, uses_mps=True))
