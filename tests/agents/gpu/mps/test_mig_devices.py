"""A node with one GPU in three slices next to a whole one: fake driver and MPS, real processes and device."""

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from agents.base.device import DeviceError, GpuLost
from agents.gpu.mps.daemon import Mps, MpsSettings
from agents.gpu.mps.directory import MAX_PIPE_PATH
from agents.gpu.mps.gpu_sharing import ByTurns, UnderMps, make_slice_sharing, mps_folder
from agents.gpu.node.device import GpuDevice
from agents.gpu.node.devices import Devices, SliceErrors, type_of
from agents.gpu.node.open import GpuNodeSettings, open_gpu_device
from agents.gpu.nvml.session import Nvml
from agents.gpu.nvml.types import GpuIdentity
from agents.gpu.nvml.xid_watch import XidWatch
from agents.replicas.replica import Proof
from tests.agents.factories import a_replica, a_task
from tests.agents.fakes.nvml.fake_gpus import MIB, FakeGpus, Slice
from tests.agents.fakes.nvml.fixtures import fake, library
from tests.agents.gpu_nodes import CLOCK, environment, play, states, until
from tests.waiting import in_loop

__all__ = ("fake", "library")

SLICES = (
    ("3g.71gb", 1, 60, 71168, 4),
    ("1g.18gb", 5, 16, 16384, 1),
    ("1g.18gb", 6, 16, 16384, 1),
)
"""Profile, instance, SMs, MiB, memory slices."""
WHOLE, LARGE, SMALL, LAST = 1, 1010, 1050, 1060


def a_slice(profile: str, instance: int, sms: int, memory_mib: int, size: int) -> Slice:
    return Slice(
        uuid=f"MIG-{instance}".encode(),
        name=f"NVIDIA H200 MIG {profile}".encode(),
        sm_count=sms,
        gpu_instance=instance,
        in_use=1,
        start=instance - 1,
        size=size,
        memory_mib=memory_mib,
    )


@pytest.fixture(autouse=True)
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch that ends waits for its last look."""
    assert XidWatch.__init__.__kwdefaults__ is not None
    monkeypatch.setitem(XidWatch.__init__.__kwdefaults__, "wait_ms", 20)


@pytest.fixture
def sliced(fake: FakeGpus) -> FakeGpus:
    fake.enable_mig("H200")
    fake.slice_up(*(a_slice(*each) for each in SLICES))
    return fake


@pytest.fixture
def nvml(sliced: FakeGpus) -> Iterator[Nvml]:
    with Nvml() as opened:
        yield opened


def by_index(devices: Devices) -> dict[int, GpuIdentity]:
    return {gpu.index: gpu for gpu in devices.gpus()}


def test_slices_stand_beside_the_whole_gpu_in_the_place_of_theirs(nvml: Nvml) -> None:
    devices = Devices(nvml)
    found = by_index(devices)
    assert list(found) == [WHOLE, LARGE, SMALL, LAST]
    assert (found[LARGE].memory_mib, found[LARGE].sm_count, found[LARGE].uuid) == (
        71168.0,
        60,
        "MIG-1",
    )
    assert [type_of(gpu, lambda _: "H200-141GB") for gpu in found.values()] == [
        "H200-141GB",
        "H200-141GB-MIG-3g.71gb",
        "H200-141GB-MIG-1g.18gb",
        "H200-141GB-MIG-1g.18gb",
    ]


def test_the_power_and_energy_of_the_gpu_are_split_by_sms_and_count_once(
    nvml: Nvml, sliced: FakeGpus
) -> None:
    sliced.gpu(0).slices[0].memory_used = 700 * MIB
    devices = Devices(nvml)
    found = by_index(devices)
    samples = {
        index: devices.sample(gpu)
        for index, gpu in found.items()
        if gpu.part is not None
    }
    assert {each.busy_percent for each in samples.values()} == {None}, (
        "the driver says it of no slice"
    )
    assert {index: devices.power_w(found[index]) for index in samples} == {
        index: each.power_w for index, each in samples.items()
    }
    # 60, 16 and 16 of 92 SMs; the GPU draws 100 W and has counted 5000 J.
    assert samples[LARGE].power_w == pytest.approx(100.0 * 60 / 92)
    assert samples[SMALL].energy_j == pytest.approx(5000.0 * 16 / 92)
    assert sum(each.power_w for each in samples.values()) == pytest.approx(100.0)
    assert sum(each.energy_j or 0.0 for each in samples.values()) == pytest.approx(
        5000.0
    )
    assert [samples[index].memory_used_mib for index in (LARGE, SMALL)] == [700.0, 0.0]


def test_a_slice_that_goes_changes_no_other_index_and_a_new_one_is_noticed(
    nvml: Nvml, sliced: FakeGpus
) -> None:
    devices = Devices(nvml)
    assert devices.look().problems == ()
    sliced.gpu(0).slices[1].in_use = 0
    assert list(by_index(Devices(nvml))) == [WHOLE, LARGE, LAST]
    with pytest.raises(GpuLost, match=r"slice 1050 \(MIG-5\) is gone"):
        devices.sample(by_index(devices)[SMALL])
    assert [index for index, _ in devices.look().gone] == [SMALL]
    sliced.gpu(0).slices[1] = a_slice("1g.18gb", 7, 16, 16384, 1)
    gone, fresh = devices.look().problems
    assert (
        "slice 1050" in gone
        and fresh == "GPU 0 has new slices MIG-7: restart the agent to use them"
    )


def test_a_gpu_in_mig_mode_without_slices_is_no_device_and_said(fake: FakeGpus) -> None:
    fake.enable_mig("A100")
    with Nvml() as nvml:
        devices = Devices(nvml)
        assert [gpu.index for gpu in devices.gpus()] == [1]
        assert "GPU 0 is in MIG mode without slices" in devices.look().problems[0]


def test_a_critical_error_of_the_gpu_condemns_its_slices_alone(
    nvml: Nvml, sliced: FakeGpus
) -> None:
    devices = Devices(nvml)
    errors = SliceErrors(
        XidWatch(nvml, devices.entire_gpus, wait_ms=20), devices.gpus()
    )
    try:
        play(lambda: until(lambda: _is_told(sliced, errors)))
        assert sorted(errors.condemned()) == ["GPU-0", "MIG-1", "MIG-5", "MIG-6"]
    finally:
        errors.close()


async def _is_told(fake: FakeGpus, errors: SliceErrors) -> bool:
    fake.happens(79)
    return bool(errors.condemned())


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path leaves room for the sockets of MPS, in whatever process the test runs."""
    with tempfile.TemporaryDirectory(prefix="mps") as folder:
        yield Path(folder)


def test_mps_inside_a_slice_proves_shares_of_the_slice(
    nvml: Nvml, short_path: Path
) -> None:
    gpu = by_index(Devices(nvml))[LARGE]

    def make_mps(uuid: str, directory: Path) -> Mps:
        return Mps(uuid, directory, environment=environment())

    async def scenario() -> None:
        sharing = await make_slice_sharing(gpu, short_path / "m", make_mps=make_mps)
        assert isinstance(sharing, UnderMps), sharing.problem
        # Half of 60 SMs are 30; half of the whole GPU's 132 would be 66.
        assert await sharing.objection(_a_proof(30)) == ""
        assert "60 SMs" in await sharing.objection(_a_proof(66))
        given = await sharing.environment(a_replica())
        assert given["CUDA_VISIBLE_DEVICES"] == "MIG-1"
        assert given["CUDA_MPS_PIPE_DIRECTORY"] == str(
            short_path / "m" / mps_folder(gpu) / "pipe"
        )
        await sharing.close()

    play(scenario)
    assert len(f"/run/plimsoll-agent/{mps_folder(gpu)}/pipe") < MAX_PIPE_PATH


def _a_proof(sms: int) -> Proof:
    return Proof(id="r1", gpu_index=LARGE, sm_percent=50.0, sm_count=sms, pids=())


@in_loop
async def test_where_mps_is_refused_inside_a_slice_replicas_take_turns_and_it_is_said(
    nvml: Nvml, tmp_path: Path
) -> None:
    gpu = by_index(Devices(nvml))[LARGE]
    without_server = {**environment(), "PATH": "/usr/bin:/bin"}
    sharing = await make_slice_sharing(
        gpu,
        tmp_path / "m",
        make_mps=lambda uuid, path: Mps(
            uuid, path, environment=without_server, settings=MpsSettings(start_s=0.5)
        ),
    )
    assert isinstance(sharing, ByTurns)
    assert (
        "GPU 1010 is shared by turns, SM percents are not in force: MPS does not work inside"
        in sharing.problem
    )


@asynccontextmanager
async def node(directory: Path) -> AsyncIterator[GpuDevice]:
    settings = GpuNodeSettings(
        state_dir=directory / "s",
        mps_dir=directory / "m",
        type_of=lambda _: "H200-141GB",
        uses_mps=False,
    )
    device = await open_gpu_device(settings, CLOCK)
    try:
        yield device
    finally:
        await device.close()


@pytest.mark.integration
@in_loop
async def test_replicas_run_on_two_slices_and_one_whose_slice_goes_fails(
    sliced: FakeGpus, tmp_path: Path
) -> None:
    async with node(tmp_path) as device:
        gpus = {gpu.index: gpu for gpu in (await device.state()).gpus}
        assert [gpu.max_replicas for gpu in gpus.values()] == [48, 20, 6, 6]
        assert [gpu.has_clock_lock for gpu in gpus.values()] == [
            True,
            False,
            False,
            False,
        ]
        await device.start_replica(LARGE, a_replica("r1"))
        await device.start_replica(SMALL, a_replica("r2"))
        for index, name in ((LARGE, "t1"), (SMALL, "t2")):
            await device.start_task(index, a_task(name, iterations=1_000_000))
        await until(lambda: _are(device, r1="ready", r2="ready"))
        # Else enforcement would replace them.
        state = await device.state()
        running = [(*gpu.replicas, *gpu.tasks) for gpu in state.gpus]
        uids = {each.uid for gpu in running for each in gpu}
        assert (state.uids, uids) == ({"": os.geteuid()}, {os.geteuid()})
        sliced.gpu(0).slices[1].in_use = 0
        readings = await device.read()
        assert {gpu.index: gpu.healthy for gpu in readings.gpus}[SMALL] is False
        await until(lambda: _are(device, r1="ready", r2="failed"))
        await until(lambda: _task_has_failed(device, "t2"))
        readings = await device.read()
        assert {task.name: task.state for task in readings.tasks}["t1"] in (
            "starting",
            "running",
        )
        problems = readings.problems
        assert any(
            "task t2: slice 1050 (MIG-5) is gone" in words for words in problems
        ), problems
        assert any(
            "replica r2: slice 1050 (MIG-5) is gone" in words for words in problems
        ), problems
        assert not any("clock is not in force" in words for words in problems)


async def _task_has_failed(device: GpuDevice, name: str) -> bool:
    return any(
        task.name == name and task.state == "failed"
        for task in (await device.read()).tasks
    )


@pytest.mark.integration
@in_loop
async def test_a_node_that_cannot_be_opened_leaves_nothing_open_and_its_replicas_alone(
    sliced: FakeGpus, tmp_path: Path
) -> None:
    in_the_way = tmp_path / "s" / "tasks"
    settings = GpuNodeSettings(
        state_dir=tmp_path / "s", mps_dir=tmp_path / "m", uses_mps=False
    )
    device = await open_gpu_device(replace(settings, keeps_replicas=True), CLOCK)
    await device.start_replica(LARGE, a_replica("r1"))
    await until(lambda: _are(device, r1="ready"))
    await device.close()
    in_the_way.rename(tmp_path / "aside")
    in_the_way.write_text("no directory")
    with pytest.raises(DeviceError, match="tasks cannot hold records of processes"):
        await open_gpu_device(settings, CLOCK)
    in_the_way.unlink()
    device = await open_gpu_device(settings, CLOCK)
    await until(lambda: _are(device, r1="ready"))
    await device.close()


async def _are(device: GpuDevice, **wanted: str) -> bool:
    return await states(device) == wanted
