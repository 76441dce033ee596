"""What is read from GPUs, and their knobs, through the real NVML binding against the fake driver."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from agents.base.device import (
    DeviceError,
    GpuLost,
    NoDriver,
    NotPermitted,
    NotSupported,
    OutOfRange,
    UnknownPart,
)
from agents.gpu.nvml.capabilities import WATCH_ONLY, find_abilities, probe, problems
from agents.gpu.nvml.errors import translate
from agents.gpu.nvml.lacks import LackKind
from agents.gpu.nvml.mig_types import InUse, NoRoom
from agents.gpu.nvml.parse import sms
from agents.gpu.nvml.session import Nvml
from agents.gpu.nvml.types import (
    Capability,
    GpuIdentity,
    GpuProcess,
    ProcessUse,
    event_reasons,
)
from agents.gpu.nvml.xids import RecoveryAction, bars_use, describe_recovery
from tests.agents.fakes.nvml import fake_gpus
from tests.agents.fakes.nvml.fake_gpus import MIB, FakeGpus, Process
from tests.agents.fakes.nvml.fixtures import fake, library

__all__ = ("fake", "library")

NOT_AVAILABLE = 2**64 - 1


@pytest.fixture
def nvml(fake: FakeGpus) -> Iterator[Nvml]:
    with Nvml() as opened:
        yield opened


def first(nvml: Nvml) -> GpuIdentity:
    return nvml.gpus()[0]


def test_a_power_limit_holds_the_clock_back_and_is_named_as_the_reason(
    nvml: Nvml, fake: FakeGpus
) -> None:
    fake.gpu(0).load_percent = 100
    nvml.limit_power_w(first(nvml), 300.0)
    sample = nvml.sample(first(nvml))
    # 100 W idle and 600 W more at 1980 MHz: 300 W are 100 + 600 · 660 / 1980.
    assert (sample.power_w, sample.clock_mhz, sample.enforced_limit_w) == (
        300.0,
        660.0,
        300.0,
    )
    assert sample.event_reasons == sample.held_back_by == ("power limit",)
    # What counts may be lower than what is set.
    fake.gpu(0).power_enforced = 250_000
    assert nvml.power_limit_w(first(nvml)) == 300.0
    assert nvml.sample(first(nvml)).enforced_limit_w == 250.0


def test_the_drivers_reserve_is_not_memory_in_use(nvml: Nvml, fake: FakeGpus) -> None:
    fake.gpu(0).memory_used = 1000 * MIB
    sample = nvml.sample(first(nvml))
    assert (sample.memory_used_mib, sample.memory_reserved_mib) == (1000.0, 640.0)
    fake.fail("nvmlDeviceGetMemoryInfo_v2", 13)
    old = nvml.sample(first(nvml))
    assert (old.memory_used_mib, old.memory_reserved_mib) == (1640.0, 0.0)


@pytest.mark.parametrize(
    ("code", "words"),
    [(9, "driver is not loaded"), (12, "comes with"), (18, "being upgraded")],
)
def test_without_a_driver_there_is_no_session(
    fake: FakeGpus, code: int, words: str
) -> None:
    fake.fail("nvmlInitWithFlags", code)
    with pytest.raises(NoDriver, match=words):
        Nvml()


@pytest.mark.parametrize(
    ("without", "capability"),
    [
        (fake_gpus.NO_ENERGY, Capability.COUNT_ENERGY),
        (fake_gpus.NO_USE, Capability.PROCESS_USE),
        (fake_gpus.NO_MPS_LIST, Capability.LIST_MPS),
        (fake_gpus.NO_GPM, Capability.SM_ACTIVITY),
        (fake_gpus.NO_EVENTS, Capability.XID_EVENTS),
        (fake_gpus.NO_MIG, Capability.MIG_LAYOUT),
        (fake_gpus.NO_PERSISTENCE, Capability.KEEP_SETTINGS),
        (fake_gpus.NO_POWER, Capability.LIMIT_POWER),
    ],
)
def test_what_a_gpu_does_not_have_is_said_with_the_reason(
    nvml: Nvml, fake: FakeGpus, without: int, capability: Capability
) -> None:
    fake.gpu(0).without = without
    gpu = first(nvml)
    found = probe(nvml, gpu, try_writes=True)
    assert [each for each, _ in found.why_not] == [capability]
    assert not found.can(capability)
    (line,) = problems(gpu, found)
    assert line.startswith(f"GPU 0 cannot {capability}: ")
    assert any(
        reason in line
        for reason in ("does not have it", "since Hopper", "run nvidia-persistenced")
    )
    assert probe(nvml, nvml.gpus()[1], try_writes=True).can(capability)


@pytest.mark.parametrize(
    ("code", "kind", "detail"),
    [
        (3, LackKind.OTHER, "this GPU does not have it"),
        (4, LackKind.RIGHT_MISSING, "it needs CAP_SYS_ADMIN"),
        (13, LackKind.DRIVER_TOO_OLD, "the installed driver is too old for it"),
        (17, LackKind.DEVICE_BLOCKED, "the operating system blocks the device; "),
        (12345, LackKind.OTHER, "NVML answered 12345; try again"),
    ],
)
def test_each_lack_has_its_kind(
    nvml: Nvml, fake: FakeGpus, code: int, kind: LackKind, detail: str
) -> None:
    fake.fail("nvmlDeviceGetMPSComputeRunningProcesses_v3", code)
    (lack,) = find_abilities(nvml, first(nvml), try_writes=True).lacks
    assert (lack.capability, lack.kind) == (Capability.LIST_MPS, kind)
    assert lack.detail.startswith(detail)
    said = f"could not {Capability.LIST_MPS} of GPU 0 (GPU-0): {lack.detail}"
    assert lack.message == said


def test_without_the_right_both_knobs_are_off_and_nothing_is_written(
    nvml: Nvml, fake: FakeGpus
) -> None:
    fake.state.may_write = 0
    found = probe(nvml, first(nvml), try_writes=True)
    assert [each for each, _ in found.why_not] == [
        Capability.LOCK_CLOCK,
        Capability.LIMIT_POWER,
    ]
    assert all("CAP_SYS_ADMIN" in message for _, message in found.why_not)
    assert found.power_range is not None, "what can be read is read"
    watched = probe(nvml, first(nvml), try_writes=False).why_not
    assert [(each, WATCH_ONLY) for each, _ in found.why_not] == list(watched)
    assert fake.state.writes == 0


def test_trying_the_right_leaves_what_an_operator_set(
    nvml: Nvml, fake: FakeGpus
) -> None:
    gpu = fake.gpu(0)
    gpu.power_limit, gpu.lock_low, gpu.lock_high = 450_000, 345, 1200
    assert probe(nvml, first(nvml), try_writes=True).can(Capability.LOCK_CLOCK)
    assert (gpu.power_limit, gpu.lock_low, gpu.lock_high) == (450_000, 345, 1200)


def test_a_lock_that_was_refused_is_a_capability_off_until_one_succeeds(
    nvml: Nvml, fake: FakeGpus
) -> None:
    fake.gpu(0).without = fake_gpus.NO_LOCK
    gpu = first(nvml)
    assert probe(nvml, gpu, try_writes=True).can(Capability.LOCK_CLOCK), (
        "nothing harmless tells"
    )
    with pytest.raises(NotSupported):
        nvml.lock_clock_mhz(gpu, low_mhz=345.0, high_mhz=900.0)
    assert not probe(nvml, gpu, try_writes=True).can(Capability.LOCK_CLOCK)
    fake.gpu(0).without = 0
    nvml.unlock_clock(gpu)
    assert probe(nvml, gpu, try_writes=True).can(Capability.LOCK_CLOCK)


def test_a_clock_is_locked_rounded_to_a_step_and_unlocked(
    nvml: Nvml, fake: FakeGpus
) -> None:
    fake.gpu(0).load_percent = 100
    gpu = first(nvml)
    nvml.lock_clock_mhz(gpu, low_mhz=345.0, high_mhz=1204.0)
    # 1204 lies between 345 + 57 · 15 = 1200 and 1215.
    assert (
        fake.gpu(0).lock_low,
        fake.gpu(0).lock_high,
        nvml.sample(gpu).clock_mhz,
    ) == (345, 1200, 1200.0)
    nvml.unlock_clock(gpu)
    assert (fake.gpu(0).lock_high, nvml.sample(gpu).clock_mhz) == (0, 1980.0)


@pytest.mark.parametrize(
    ("low", "high"), [(100.0, 900.0), (345.0, 2000.0), (1200.0, 900.0), (-5.0, 900.0)]
)
def test_a_clock_out_of_range_is_refused_with_the_range(
    nvml: Nvml, fake: FakeGpus, low: float, high: float
) -> None:
    with pytest.raises(OutOfRange, match="give 345 to 1980 MHz, the lower end first"):
        nvml.lock_clock_mhz(first(nvml), low_mhz=low, high_mhz=high)
    assert fake.gpu(0).lock_high == 0


@pytest.mark.parametrize("limit_w", [199.9, 700.1, -1.0, 1e12, float("nan")])
def test_a_power_limit_out_of_range_is_refused_with_the_range(
    nvml: Nvml, fake: FakeGpus, limit_w: float
) -> None:
    fake.gpu(0).power_limit = 450_000
    with pytest.raises(OutOfRange, match="give 200 to 700 W"):
        nvml.limit_power_w(first(nvml), limit_w)
    assert fake.gpu(0).power_limit == 450_000
    nvml.limit_power_w(first(nvml), None)
    assert fake.gpu(0).power_limit == 700_000, "the board's default"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (1, NoDriver),
        (2, OutOfRange),
        (3, NotSupported),
        (4, NotPermitted),
        (6, UnknownPart),
        (9, NoDriver),
        (13, NotSupported),
        (15, GpuLost),
        (16, GpuLost),
        (17, NotPermitted),
        (18, NoDriver),
        (19, InUse),
        (20, DeviceError),
        (21, NotSupported),
        (22, NotSupported),
        (23, NoRoom),
        (24, OutOfRange),
        (25, NotSupported),
        (26, NotSupported),
        (27, DeviceError),
        (29, DeviceError),
        (30, NotSupported),
        (999, DeviceError),
        (12345, DeviceError),
    ],
)
def test_each_return_code_is_one_error_with_advice(
    nvml: Nvml, fake: FakeGpus, code: int, error: type[DeviceError]
) -> None:
    gpu = first(nvml)
    fake.fail("nvmlDeviceGetPowerUsage", code)
    with pytest.raises(DeviceError) as raised:
        nvml.power_w(gpu)
    assert type(raised.value) is error
    assert str(raised.value) == str(translate(code, "read the power of GPU 0 (GPU-0)"))
    assert raised.value.__cause__ is not None, "the cause is kept"
    is_named = code < 100 or code == 999
    assert ("NVML answered" in str(raised.value)) is not is_named


REFUSED = {
    "nvmlDeviceGetPowerUsage": "power_w",
    "nvmlDeviceGetClockInfo": "clock_mhz",
    "nvmlDeviceGetUtilizationRates": "busy_percent",
    "nvmlDeviceGetTotalEnergyConsumption": "energy_j",
    "nvmlDeviceGetEnforcedPowerLimit": "enforced_limit_w",
    "nvmlDeviceGetFieldValues": "recovery",
}


@pytest.mark.parametrize("code", [2, 3, 4, 13, 21, 22, 25, 26])
@pytest.mark.parametrize("function", [*REFUSED, "nvmlDeviceGetMemoryInfo"])
def test_what_a_gpu_does_not_tell_is_unknown_and_all_else_is_read(
    nvml: Nvml, fake: FakeGpus, function: str, code: int
) -> None:
    told = nvml.sample(first(nvml))
    fake.fail(function, code)
    if function == "nvmlDeviceGetMemoryInfo":
        fake.fail("nvmlDeviceGetMemoryInfo_v2", code)
        unknown = {"memory_used_mib": None, "memory_reserved_mib": 0.0}
    else:
        unknown = {REFUSED[function]: None}
    assert nvml.sample(first(nvml)) == replace(told, **unknown)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [3, 13, 25])
def test_memory_is_read_by_version_1_where_the_newer_is_refused(
    nvml: Nvml, fake: FakeGpus, code: int
) -> None:
    fake.fail("nvmlDeviceGetMemoryInfo_v2", code)
    assert first(nvml).memory_mib == 81920.0
    assert nvml.sample(first(nvml)).memory_used_mib == 640.0, "with the reserve"


@pytest.mark.parametrize("code", [1, 3, 4, 6, 9, 10, 15, 16, 17, 20, 27, 999, 12345])
def test_any_error_of_one_handle_costs_that_gpu(
    nvml: Nvml, fake: FakeGpus, code: int
) -> None:
    fake.fail("nvmlDeviceGetHandleByIndex_v2", code, times=1)
    found = nvml.listing()
    assert [gpu.index for gpu in found.gpus] == [1]
    ((index, why),) = found.silent
    assert index == 0 and why.startswith("could not open GPU 0: ")
    assert [gpu.index for gpu in nvml.gpus()] == [0, 1], "it answers again"


def test_where_no_gpu_answers_since_the_driver_is_gone_that_is_said(
    nvml: Nvml, fake: FakeGpus
) -> None:
    fake.fail("nvmlDeviceGetHandleByIndex_v2", 9)
    with pytest.raises(NoDriver, match="not loaded"):
        nvml.gpus()


@pytest.mark.parametrize(
    ("number", "action", "bars"),
    [
        (0, RecoveryAction.NONE, False),
        (1, RecoveryAction.GPU_RESET, True),
        (2, RecoveryAction.NODE_REBOOT, True),
        (3, RecoveryAction.DRAIN_P2P, False),
        (4, RecoveryAction.DRAIN_AND_RESET, False),
        (5, RecoveryAction.RECOVER_IMEX_DOMAIN, False),
        (6, RecoveryAction.BUS_RESET, True),
        (7, RecoveryAction.SYSTEM_REBOOT, True),
        (42, 42, True),
    ],
)
def test_recovery_actions_are_told_by_name_and_unknown_ones_by_number(
    nvml: Nvml, fake: FakeGpus, number: int, action: RecoveryAction | int, bars: bool
) -> None:
    fake.gpu(0).recovery = number
    found = nvml.sample(first(nvml)).recovery
    assert (found, bars_use(found)) == (action, bars)
    assert found is not None
    assert ("42" in describe_recovery(found)) is (number == 42)


@pytest.mark.parametrize("code", [15, 16])
def test_a_lost_gpu_leaves_the_others_and_comes_back(
    nvml: Nvml, fake: FakeGpus, code: int
) -> None:
    lost, other = nvml.gpus()
    fake.gpu(0).lost = code
    with pytest.raises(GpuLost, match="GPU 0"):
        nvml.sample(lost)
    assert nvml.sample(other).power_w == 100.0
    assert nvml.gpus() == (other,)
    fake.gpu(0).lost = 0
    assert nvml.sample(lost).clock_mhz == 345.0


@pytest.mark.parametrize("code", [1, 15, 18])
def test_after_the_driver_was_loaded_again_gpus_are_found_by_uuid(
    nvml: Nvml, fake: FakeGpus, code: int
) -> None:
    gpu = first(nvml)
    # Indices may change with a driver: the second place is now the first GPU's.
    fake.gpu(0).uuid, fake.gpu(1).uuid = b"GPU-1", b"GPU-0"
    fake.gpu(1).memory_used = 77 * MIB
    fake.reload(version="590.10", code=code)
    assert nvml.sample(gpu).memory_used_mib == 77.0
    assert nvml.driver_version() == "590.10"


def test_processes_are_told_with_memory_and_who_shares_by_mps(
    nvml: Nvml, fake: FakeGpus
) -> None:
    fake.run_processes(
        Process(pid=31, is_mps=1, memory=512 * MIB),
        Process(pid=12, memory=2048 * MIB),
        Process(pid=40, memory=NOT_AVAILABLE),
    )
    assert nvml.processes(first(nvml)) == (
        GpuProcess(pid=12, memory_mib=2048.0, is_mps=False),
        GpuProcess(pid=31, memory_mib=512.0, is_mps=True),
        GpuProcess(pid=40, memory_mib=None, is_mps=False),
    )
    assert nvml.processes(nvml.gpus()[1]) == ()


def test_without_an_mps_list_there_are_no_clients_and_another_layout_is_not_believed(
    nvml: Nvml, fake: FakeGpus
) -> None:
    fake.run_processes(Process(pid=31, is_mps=1, memory=MIB))
    fake.gpu(0).without = fake_gpus.NO_MPS_LIST
    expected = GpuProcess(pid=31, memory_mib=1.0, is_mps=False)
    assert nvml.processes(first(nvml)) == (expected,)
    fake.run_processes(Process(pid=1 << 22, memory=MIB))
    with pytest.raises(NotSupported, match="another layout"):
        nvml.processes(first(nvml))


def test_use_is_told_by_process_and_an_idle_gpu_has_none(
    nvml: Nvml, fake: FakeGpus
) -> None:
    fake.run_processes(Process(pid=31, sm_percent=20), Process(pid=12, sm_percent=35))
    assert nvml.process_use(first(nvml)) == ()
    fake.gpu(0).load_percent = 55
    expected = (
        ProcessUse(pid=12, sm_percent=35.0),
        ProcessUse(pid=31, sm_percent=20.0),
    )
    found = nvml.process_use(first(nvml))
    assert found == expected
    later_us = found[0].at_us + 3_600_000_000
    assert nvml.process_use(first(nvml), later_us) == (), (
        "nothing has run since an hour from now"
    )


def test_sm_activity_is_a_share_where_busy_is_all_or_nothing(
    nvml: Nvml, fake: FakeGpus
) -> None:
    fake.gpu(0).load_percent = 20
    assert nvml.sm_activity_percent(first(nvml)) == 20.0
    assert nvml.sample(first(nvml)).busy_percent == 100.0
    fake.gpu(0).without = fake_gpus.NO_GPM
    with pytest.raises(NotSupported, match="since Hopper"):
        nvml.sm_activity_percent(first(nvml))


def test_sms_and_reasons_are_read_from_numbers() -> None:
    # 128 cores per SM since 8.6; 64 before.
    cores = ((5120, (7, 0)), (6912, (8, 0)), (10752, (8, 6)), (18432, (8, 9)))
    assert [sms(*each) for each in cores] == [80, 108, 84, 144]
    assert event_reasons(0x1 | 0x4 | 0x80) == ("idle", "power limit", "power brake")
    assert event_reasons(0x200 | 0x400) == ("board limit", "reliability")
    assert event_reasons(0x800) == ("unknown 0x800",)


@pytest.mark.parametrize("bit", [0x4, 0x8, 0x20, 0x40, 0x80, 0x200, 0x400])
def test_limits_of_power_heat_and_board_hold_a_clock_back(
    nvml: Nvml, fake: FakeGpus, bit: int
) -> None:
    fake.gpu(0).reasons = bit
    assert nvml.sample(first(nvml)).held_back_by == event_reasons(bit)


def test_old_gpus_have_no_clock_lock_or_list_no_clocks(
    nvml: Nvml, fake: FakeGpus
) -> None:
    fake.gpu(0).without = fake_gpus.NO_CLOCK_LIST
    # 1980 / 2 / 15 = 66 steps below the highest: 1980 - 66 · 15 = 990.
    assert nvml.clocks_mhz(first(nvml)) == tuple(990.0 + 15.0 * at for at in range(67))
    fake.gpu(0).architecture = 4
    ((capability, message),) = probe(nvml, first(nvml), try_writes=True).why_not
    assert (capability, "since Volta" in message) == (Capability.LOCK_CLOCK, True)
