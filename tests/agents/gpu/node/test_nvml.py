"""Telemetry through the real NVML binding, against a small fake for the driver's library."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agents.base.clock import ManualClock
from agents.base.device import DeviceError, GpuLost, NotSupported
from agents.gpu.node.readonly_device import ReadOnlyDevice
from agents.gpu.nvml.types import GpuIdentity, GpuSample
from tests.agents.factories import a_replica, run

# Two GPUs; what fails is said by environment variables that hold NVML's return codes.
FAKE_LIBRARY = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static int code(const char *name) { const char *v = getenv(name); return v ? atoi(v) : 0; }
typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned int gpu, memory; } utilization;
static int names[2] = {0, 1};
int nvmlInitWithFlags(unsigned flags) { return code("FAKE_INIT"); }
int nvmlInit_v2(void) { return code("FAKE_INIT"); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int result) { static char text[32]; sprintf(text, "error %d", result); return text; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = &names[index]; return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    *device = &names[strcmp(uuid, "GPU-1") == 0]; return code("FAKE_SAMPLE"); }
int nvmlDeviceGetUUID(void *device, char *text, unsigned n) { snprintf(text, n, "GPU-%d", *(int *)device); return 0; }
int nvmlDeviceGetName(void *device, char *text, unsigned n) { snprintf(text, n, "Fake GPU"); return 0; }
int nvmlDeviceGetMemoryInfo(void *device, memory_v1 *m) {
    m->total = 32768ULL << 20; m->used = 1024ULL << 20; return 0; }
#ifndef OLD_DRIVER
int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2 *m) {
    m->total = 32768ULL << 20; m->used = 512ULL << 20; return 0; }
#endif
int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) { *mw = 123500; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *mj) {
    *mj = 5000000; return code("FAKE_ENERGY"); }
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *mhz) { *mhz = kind == 1 ? 1380 : 877; return 0; }
int nvmlDeviceGetUtilizationRates(void *device, utilization *u) {
    u->gpu = 40; u->memory = 10; return code("FAKE_BUSY"); }
"""

PROBE = """
import dataclasses, json
from agents.base.device import DeviceError
from agents.gpu.nvml.session import Nvml
try:
    with Nvml() as nvml:
        gpus = nvml.gpus()
        print(json.dumps({"gpus": [dataclasses.asdict(gpu) for gpu in gpus],
                          "sample": dataclasses.asdict(nvml.sample(gpus[1]))}))
except DeviceError as error:
    print(json.dumps({"error": type(error).__name__, "words": str(error)}))
"""


def build(directory: Path, *flags: str) -> Path:
    """Compile the fake; the folder that holds it."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: the fake for libnvidia-ml.so.1 cannot be built")
    directory.mkdir()
    source = directory / "fake.c"
    source.write_text(FAKE_LIBRARY)
    target = directory / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-w", *flags, "-o", str(target), str(source)],
        check=True,
    )
    return directory


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml") / "new")


@pytest.fixture(scope="session")
def old_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml") / "old", "-DOLD_DRIVER")


def probe(library: Path, **codes: int) -> dict[str, object]:
    """What a process sees that loads the library; `codes`: what fails, and how."""
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(library),
        **{name: str(code) for name, code in codes.items()},
    }
    ended = subprocess.run(
        [sys.executable, "-c", PROBE],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    seen: dict[str, object] = json.loads(ended.stdout)
    return seen


def test_gpus_are_found_and_read_in_our_units(driver: Path) -> None:
    seen = probe(driver)
    assert seen["gpus"] == [
        {
            "index": index,
            "uuid": f"GPU-{index}",
            "name": "Fake GPU",
            "memory_mib": 32768.0,
            "sm_count": None,
            "part": None,
        }
        for index in (0, 1)
    ]
    assert seen["sample"] == {
        "memory_used_mib": 512.0,
        "power_w": 123.5,
        "energy_j": 5000.0,
        "clock_mhz": 1380.0,
        "busy_percent": 40.0,
        "memory_reserved_mib": 0.0,
        "enforced_limit_w": None,  # this library has no such function
        "event_reasons": [],
    }


def test_an_old_driver_is_read_by_the_older_call(old_driver: Path) -> None:
    sample = probe(old_driver)["sample"]
    assert isinstance(sample, dict)
    assert sample["memory_used_mib"] == 1024.0


def test_what_a_gpu_cannot_tell_is_left_out(driver: Path) -> None:
    sample = probe(driver, FAKE_ENERGY=3, FAKE_BUSY=3)["sample"]
    assert isinstance(sample, dict)
    assert (sample["energy_j"], sample["busy_percent"]) == (None, None)


@pytest.mark.parametrize(
    ("codes", "error", "words"),
    [
        ({"FAKE_INIT": 9}, "NoDriver", "kernel driver is not loaded"),
        ({"FAKE_INIT": 12}, "NoDriver", "comes with the driver"),
        ({"FAKE_INIT": 18}, "NoDriver", "being upgraded"),
        (
            {"FAKE_SAMPLE": 15},
            "GpuLost",
            "could not read GPU 1 (GPU-1): the GPU fell off the bus",
        ),
        ({"FAKE_SAMPLE": 4}, "NotPermitted", "CAP_SYS_ADMIN"),
        ({"FAKE_SAMPLE": 6}, "UnknownPart", "no such GPU"),
        ({"FAKE_SAMPLE": 999}, "DeviceError", "could not read GPU 1"),
    ],
)
def test_every_return_code_becomes_one_of_our_errors(
    driver: Path, codes: dict[str, int], error: str, words: str
) -> None:
    seen = probe(driver, **codes)
    assert seen["error"] == error
    assert words in str(seen["words"])


class PaperNvml:
    """One GPU whose counter and state the test moves."""

    def __init__(self) -> None:
        self.energy_j: float | None = 1000.0
        self.error: DeviceError | None = None
        self.is_closed = False

    def gpus(self) -> tuple[GpuIdentity, ...]:
        return (
            GpuIdentity(
                index=0, uuid="GPU-0", name="Tesla V100-SXM2-32GB", memory_mib=32768.0
            ),
        )

    def sample(self, gpu: GpuIdentity) -> GpuSample:
        if self.error is not None:
            raise self.error
        return GpuSample(
            memory_used_mib=1.0,
            power_w=50.0,
            energy_j=self.energy_j,
            clock_mhz=1380.0,
            busy_percent=5.0,
        )

    def close(self) -> None:
        self.is_closed = True


class Watched:
    def __init__(self) -> None:
        self.nvml, self.clock = PaperNvml(), ManualClock()
        self.device = ReadOnlyDevice(
            self.nvml, self.clock, type_of=lambda _: "V100-32GB"
        )

    def energy_j(self, after_s: float) -> float:
        self.clock.advance(after_s)
        return run(self.device.read()).gpus[0].energy_j


def test_energy_is_the_counters_growth_and_survives_a_reload_of_the_driver() -> None:
    watched = Watched()
    assert watched.energy_j(10.0) == 500.0  # nothing to subtract yet: 50 W · 10 s
    watched.nvml.energy_j = 1700.0
    assert watched.energy_j(10.0) == 700.0
    watched.nvml.energy_j = 3.0
    assert watched.energy_j(10.0) == 500.0
    watched.nvml.energy_j = None
    assert watched.energy_j(2.0) == 100.0


def test_a_lost_gpu_is_unhealthy_and_comes_back() -> None:
    watched = Watched()
    watched.nvml.error = GpuLost("it fell off the bus")
    readings = run(watched.device.read())
    assert not readings.gpus[0].healthy
    assert "it fell off the bus" in readings.problems
    assert not run(watched.device.state()).gpus[0].healthy
    watched.nvml.error = None
    assert run(watched.device.read()).gpus[0].healthy


def test_commands_are_answered_with_not_supported() -> None:
    device = Watched().device
    for refused in (
        device.poll(0),
        device.start_replica(0, a_replica()),
        device.switch_routes(()),
        device.drain("r1"),
        device.stop_replica("r1"),
        device.set_batch("r1", 2),
        device.lock_clock_mhz(0, 1000.0),
        device.limit_power_w(0, None),
    ):
        with pytest.raises(NotSupported, match="only watches"):
            run(refused)
