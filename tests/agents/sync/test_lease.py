"""Leases: when a command ends, what the node does then, and that no restart and no clock ends one early."""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.base.clock import ManualClock
from agents.base.protocol import LeaseEnd, LeaseTerms
from agents.sync.lease import FILE, Lease, Uptime, without_knobs
from agents.sync.ledger import Ledger
from agents.sync.transport import ControlPlaneSilent
from tests.agents.control_planes import PaperControlPlane, an_agent
from tests.agents.factories import (
    a_governor,
    a_replica,
    an_empty_node,
    on_gpu,
)
from tests.agents.factories import run as finish
from tests.agents.paper_device import PaperDevice
from tests.examples import examples

KNOBS = ("clock_mhz", "power_cap_w", "governor")
A_MINUTE = LeaseTerms(duration_s=60.0, on_end="restore")


@dataclass
class Machine:
    """Its uptime and its starts, as a test wants them."""

    boot_id: str = "start-1"
    up_s: float = 500.0

    def uptime(self) -> Uptime:
        return Uptime(boot_id=self.boot_id, now_s=lambda: self.up_s)


def a_lease(directory: Path | None, machine: Machine, now_s: float) -> Lease:
    return Lease(directory, uptime=machine.uptime(), now_s=now_s)


class Node:
    """An agent that has carried a command with one replica out, its device and its control plane."""

    def __init__(self, on_end: LeaseEnd, directory: Path | None = None) -> None:
        self.clock = ManualClock(1000.0)
        self.plane = PaperControlPlane(self.clock, on_gpu(a_replica("r1")))
        self.plane.lease = LeaseTerms(duration_s=60.0, on_end=on_end)
        self.device = PaperDevice(an_empty_node())
        self.agent = an_agent(
            self.device, self.plane, self.clock, ledger=Ledger(directory)
        )
        self.step()
        self.step()
        self.device.make_ready()
        self.step()

    def step(self, seconds: float = 1.0) -> None:
        self.clock.advance(seconds)
        finish(self.agent.step())

    def knobs(self) -> tuple[float | None, float | None]:
        gpu = finish(self.device.state()).gpus[0]
        return gpu.clock_mhz, gpu.power_limit_w


def test_restore_puts_the_knobs_back_and_the_replicas_serve_on() -> None:
    node = Node("restore")
    turned = node.knobs()
    assert None not in turned
    node.plane.error = ControlPlaneSilent("gone")
    for _ in range(59):
        node.step()
    assert node.knobs() == turned
    node.step(2.0)
    assert node.knobs() == (None, None)
    (gpu, *_), routes = (
        finish(node.device.state()).gpus,
        finish(node.device.state()).routes,
    )
    assert [each.state for each in gpu.replicas] == ["ready"]
    assert [shares for route in routes for shares, _ in route.shares] == ["r1"]
    node.plane.error = None
    node.step()
    node.step()
    assert node.knobs() == turned
    reported = [words for each in node.plane.received for words in each.problems]
    assert any(
        "silent for the lease of 60 s: clocks and power limits are at their defaults"
        in each
        for each in reported
    )
    assert any("silent for 6" in each and "is back" in each for each in reported)
    node.step()
    assert not any("silent" in words for words in node.plane.received[-1].problems)


def test_keep_changes_nothing_and_says_so_when_the_control_plane_is_back() -> None:
    node = Node("keep")
    turned, log = node.knobs(), list(node.device.log)
    node.plane.error = ControlPlaneSilent("gone")
    node.step(100.0)
    assert (node.knobs(), node.device.log) == (turned, log)
    node.plane.error = None
    node.step()
    node.step()
    reported = [words for each in node.plane.received for words in each.problems]
    assert any("its last command stays in force" in each for each in reported)


def test_without_a_lease_a_command_holds_for_ever() -> None:
    node = Node("restore")
    node.plane.lease = None
    node.step()
    turned = node.knobs()
    node.plane.error = ControlPlaneSilent("gone")
    node.step(1e6)
    assert node.knobs() == turned and not any(
        "lease" in each for each in node.plane.received[-1].problems
    )


def test_a_restarted_agent_counts_on_by_the_machines_uptime(tmp_path: Path) -> None:
    machine = Machine()
    a_lease(tmp_path, machine, 1000.0).renew(A_MINUTE, 1000.0)
    machine.up_s += 40.0
    # The wall clock was set a year ahead between the two agents: it is not asked.
    now_s = 1000.0 + 31e6
    after = a_lease(tmp_path, machine, now_s)
    # 60 s, and 6 s more for renewals that were not written, less the 40 that have passed.
    assert not after.has_ended(now_s + 25.9) and after.has_ended(now_s + 26.1)
    machine.up_s += 3600.0
    assert a_lease(tmp_path, machine, 50.0).has_ended(50.0)


def test_after_a_start_of_the_machine_what_was_left_is_left(tmp_path: Path) -> None:
    machine = Machine()
    lease = a_lease(tmp_path, machine, 1000.0)
    lease.renew(A_MINUTE, 1000.0)
    lease.tick(1045.0)  # in silence, so what is left is written: 15 s
    after = a_lease(tmp_path, Machine(boot_id="start-2", up_s=3.0), 7000.0)
    assert not after.has_ended(7014.9) and after.has_ended(7015.0)


@pytest.mark.parametrize("content", [b"", b"x", b"0123456789abcdef {}\n"])
def test_a_damaged_file_is_said_and_ends_nothing(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / FILE).write_bytes(content)
    lease = a_lease(tmp_path, Machine(), 1000.0)
    assert not lease.has_ended(1e9) and "damaged" in lease.problem
    lease.renew(A_MINUTE, 1001.0)
    assert a_lease(tmp_path, Machine(), 1001.0).has_ended(1100.0)


def test_no_lease_leaves_no_file(tmp_path: Path) -> None:
    lease = a_lease(tmp_path, Machine(), 1000.0)
    lease.renew(A_MINUTE, 1000.0)
    assert (tmp_path / FILE).exists()
    lease.renew(None, 1001.0)
    assert not (tmp_path / FILE).exists()


def test_a_full_disk_is_said_and_the_lease_goes_on_in_memory(tmp_path: Path) -> None:
    directory = tmp_path / "gone"
    directory.mkdir()
    lease = a_lease(directory, Machine(), 1000.0)
    directory.rmdir()
    lease.renew(A_MINUTE, 1000.0)
    assert "cannot be saved to disk" in lease.problem and lease.has_ended(1060.0)


@settings(max_examples=examples(40))
@given(
    steps=st.lists(
        st.tuples(st.floats(0.1, 30.0), st.booleans()), min_size=1, max_size=40
    ),
    restart_at=st.integers(0, 39),
)
def test_a_restart_never_ends_a_lease_early_nor_more_than_a_tenth_late(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[float, bool]],
    restart_at: int,
) -> None:
    directory, machine, now_s = tmp_path_factory.mktemp("lease"), Machine(), 1000.0
    lease, renewed_s = a_lease(directory, machine, now_s), now_s
    lease.renew(A_MINUTE, now_s)
    for number, (seconds, answers) in enumerate(steps):
        now_s, machine.up_s = now_s + seconds, machine.up_s + seconds
        if answers:
            lease.renew(A_MINUTE, now_s)
            renewed_s = now_s
        else:
            lease.tick(now_s)
        if number == restart_at:
            lease = a_lease(directory, machine, now_s)
        silent_s = now_s - renewed_s
        if silent_s < 59.999:
            assert not lease.has_ended(now_s)
        if silent_s > 66.001:
            assert lease.has_ended(now_s)


def test_what_is_left_of_a_command_has_no_knobs_and_no_governor() -> None:
    command = on_gpu(a_replica("r1"), governor=a_governor())
    (gpu,) = without_knobs(command).gpus
    assert (gpu.clock_mhz, gpu.power_cap_w, gpu.governor) == (0.0, 0.0, None)
    knobs = {name: getattr(command.gpus[0], name) for name in KNOBS}
    back = msgspec.structs.replace(gpu, **knobs)
    assert msgspec.structs.replace(without_knobs(command), gpus=(back,)) == command
