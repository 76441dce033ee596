"""Faults of the fake node, each as the agent's own reading of NVML meets it, and their end."""

import os
from pathlib import Path

import pytest

from agents.base.device import DeviceError, GpuLost, NotPermitted
from agents.gpu.nvml.session import Nvml
from agents.gpu.nvml.xid_watch import XidWatch
from tests.agents.fakes.fake_node import FILE, main
from tests.agents.fakes.nvml.fake_gpus import FakeGpus
from tests.agents.fakes.nvml.fixtures import fake, library
from tests.waiting import until

__all__ = ("fake", "library")


@pytest.fixture
def node(fake: FakeGpus) -> FakeGpus:
    """The GPUs of the tests, at the place where a fake node has them."""
    place = fake.path.with_name(FILE)
    os.link(fake.path, place)
    return fake


def order(node: FakeGpus, *message: str) -> None:
    """The command, in the node's state directory."""
    main([message[0], "--state-dir", str(node.path.parent), *message[1:]])


def test_each_fault_is_there_until_it_is_healed(
    node: FakeGpus, capsys: pytest.CaptureFixture[str]
) -> None:
    with Nvml() as nvml:
        first, second = nvml.gpus()
        order(node, "fault", "lost", "1")
        with pytest.raises(GpuLost):
            nvml.sample(second)
        assert nvml.sample(first).power_w == 100.0
        order(node, "heal")
        assert nvml.sample(second).power_w == 100.0
        order(node, "fault", "no-permission")
        with pytest.raises(NotPermitted):
            nvml.limit_power_w(first, 300.0)
        assert nvml.sample(first).power_w == 100.0
        order(node, "heal")
        nvml.limit_power_w(first, 600.0)
        assert node.gpu(0).power_limit == 600_000
        # A board over its cap keeps no limit and obeys its clock.
        order(node, "fault", "over-cap", "0")
        assert nvml.sample(first).power_w == 1050.0  # 1.5 x 700
        nvml.lock_clock_mhz(first, low_mhz=990.0, high_mhz=990.0)
        assert nvml.sample(first).power_w == 575.0  # 100 + (1050 - 100) / 2
        order(node, "heal")
        order(node, "fault", "call", "nvmlDeviceGetPowerUsage", "999", "--times", "1")
        with pytest.raises(DeviceError):
            nvml.sample(first)
        assert nvml.sample(first).power_w == 100.0
        order(node, "show")
        locked = "GPU 0 GPU-0: there, clock locked at 990 MHz, power limit 600 W"
        assert locked in capsys.readouterr().out
        order(node, "fault", "reload")
        order(node, "show")
        assert "GPU 0 GPU-0: there, clock not locked" in capsys.readouterr().out


def test_an_xid_condemns_the_gpu_that_it_names(node: FakeGpus) -> None:
    with Nvml() as nvml, XidWatch(nvml, nvml.gpus(), wait_ms=20) as watch:
        until(lambda: watch.is_waiting)
        order(node, "fault", "xid", "1")
        condemned = until(watch.condemned)
        assert list(condemned) == ["GPU-1"] and "79" in condemned["GPU-1"]


@pytest.mark.parametrize(
    ("index", "message"), [("2", "no GPU 2; this node has 0 to 1"), ("-1", "no GPU -1")]
)
def test_a_gpu_that_there_is_not_is_named(
    node: FakeGpus, index: str, message: str
) -> None:
    with pytest.raises(SystemExit, match=message):
        order(node, "fault", "lost", index)


def test_without_gpus_a_fault_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=f"no fake GPUs in {tmp_path}"):
        main(["heal", "--state-dir", str(tmp_path)])


def test_the_agent_finds_the_same_gpus_at_its_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(
        os, "execvpe", lambda program, message, _: calls.append([program, *message])
    )
    message = [
        "run",
        "--library",
        str(tmp_path),
        "--state-dir",
        str(tmp_path),
        "--gpus",
    ]
    main([*message, "2", "--", "plimsoll-agent", "--node", "n1"])
    first = FakeGpus.found(tmp_path / FILE)
    assert first is not None and first.gpu(0).uuid != first.gpu(1).uuid
    first.gpu(0).lock_high = 990
    main([*message, "2", "--", "plimsoll-agent"])
    again = FakeGpus.found(tmp_path / FILE)
    assert again is not None and (again.gpu(0).uuid, again.gpu(0).lock_high) == (
        first.gpu(0).uuid,
        990,
    )
    # Another machine: other GPUs.
    main([*message, "3", "--", "plimsoll-agent"])
    other = FakeGpus.found(tmp_path / FILE)
    assert (
        other is not None and other.state.gpu_count == 3 and other.gpu(0).lock_high == 0
    )
    assert calls[0][:4] == ["plimsoll-agent", "plimsoll-agent", "--node", "n1"]
