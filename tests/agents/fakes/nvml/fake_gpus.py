"""GPUs of the fake driver, seen and set from a test: the file that `fake_nvml.c` maps, laid out as there.

    library = build_library(tmp_path)            # libnvidia-ml.so.1 in a folder of its own
    fake = FakeGpus(tmp_path / "gpus", count=2)  # the file; `fake.environment(library)` for a process that shall use it
    fake.gpu(0).load_percent = 100               # any field of `Gpu`, at once and for every process
    fake.fail("nvmlDeviceGetPowerUsage", 999)    # a return code, once or more often
    fake.reload()                                # the driver is loaded again

In a test's own process `use_here(library)` loads it before the binding looks for the driver's.
"""

import ctypes
import mmap
import os
import shutil
import subprocess
from ctypes import c_char, c_int32, c_uint32, c_uint64
from pathlib import Path

HERE = Path(__file__).parent
NAME = "libnvidia-ml.so.1"
STATE_VARIABLE = "FAKE_NVML_STATE"
KILL_BEFORE, KILL_AFTER = 9001, 9002
"""Codes that kill the caller before, or right after, a write took place."""
NO_LOCK, NO_POWER, NO_ENERGY, NO_USE, NO_MPS_LIST, NO_GPM, NO_EVENTS, NO_MIG = (
    1 << n for n in range(8)
)
NO_CLOCK_LIST, NO_PERSISTENCE, NO_LIMIT_KEPT, NO_MEMORY = 256, 512, 1024, 2048
MIB = 1 << 20
PROFILES = {
    "H200": {
        0: ("1g.18gb", 19, 1, 16, 16384, 1, (0, 1, 2, 3, 4, 5, 6)),
        1: ("2g.35gb", 14, 2, 32, 33280, 2, (0, 2, 4)),
        2: ("3g.71gb", 9, 3, 60, 71168, 4, (0, 4)),
        3: ("4g.71gb", 5, 4, 64, 71168, 4, (0,)),
        4: ("7g.141gb", 0, 7, 132, 143771, 8, (0,)),
        9: ("1g.35gb", 15, 1, 26, 33280, 2, (0, 2, 4, 6)),
    },
    "A100": {
        0: ("1g.5gb", 19, 1, 14, 4864, 1, (0, 1, 2, 3, 4, 5, 6)),
        1: ("2g.10gb", 14, 2, 28, 9856, 2, (0, 2, 4)),
        2: ("3g.20gb", 9, 3, 42, 19968, 4, (0, 4)),
        3: ("4g.20gb", 5, 4, 56, 19968, 4, (0,)),
        4: ("7g.40gb", 0, 7, 98, 40192, 8, (0,)),
        9: ("1g.10gb", 15, 1, 14, 9856, 2, (0, 2, 4, 6)),
    },
}
"""Number in NVML's list: name, id, sevenths of the SMs, SMs, MiB, memory slices, and the ones that it may begin at."""
MAX_EVENTS = 64


class Process(ctypes.Structure):
    _fields_ = (
        ("pid", c_uint32),
        ("is_mps", c_uint32),
        ("sm_percent", c_uint32),
        ("gpu_instance", c_uint32),
        ("memory", c_uint64),
    )


class Slice(ctypes.Structure):
    _fields_ = (
        ("uuid", c_char * 80),
        ("name", c_char * 96),
        ("sm_count", c_uint32),
        ("gpu_instance", c_uint32),
        *((name, c_uint32) for name in ("in_use", "profile", "start", "size")),
        ("memory_mib", c_uint64),
        ("memory_used", c_uint64),
    )


class Profile(ctypes.Structure):
    _fields_ = (
        ("name", c_char * 32),
        *(
            (name, c_uint32)
            for name in ("id", "slices", "sms", "most", "size", "start_count")
        ),
        ("starts", c_uint32 * 8),
        ("memory_mib", c_uint64),
    )


class Gpu(ctypes.Structure):
    _fields_ = (
        ("uuid", c_char * 80),
        ("name", c_char * 96),
        ("architecture", c_uint32),
        ("without", c_uint32),
        *(
            (name, c_uint64)
            for name in ("memory_total", "memory_reserved", "memory_used")
        ),
        *(
            (f"clock_{name}", c_uint32)
            for name in ("low", "high", "step", "idle", "memory")
        ),
        *((name, c_uint32) for name in ("lock_low", "lock_high")),
        *(
            (f"power_{name}", c_uint32)
            for name in ("low", "high", "default", "limit", "enforced", "idle", "busy")
        ),
        *(
            (name, c_uint32)
            for name in (
                "load_percent",
                "reasons",
                "lost",
                "mig_mode",
                "process_count",
                "slice_count",
                "recovery",
                "spare",
            )
        ),
        ("energy_mj", c_uint64),
        ("energy_at_ns", c_uint64),
        ("processes", Process * 64),
        ("slices", Slice * 8),
        ("profiles", Profile * 18),
        ("slices_made", c_uint64),
    )


class Fault(ctypes.Structure):
    _fields_ = (
        ("function", c_char * 64),
        *((name, c_int32) for name in ("code", "times", "skip", "spare")),
    )


class Event(ctypes.Structure):
    _fields_ = (
        ("gpu", c_uint32),
        ("instance", c_uint32),
        ("kind", c_uint64),
        ("data", c_uint64),
    )


class State(ctypes.Structure):
    _fields_ = (
        *(
            (name, c_uint32)
            for name in (
                "size",
                "gpu_count",
                "may_write",
                "is_loaded",
                "loads",
                "reload_code",
            )
        ),
        ("event_count", c_uint32),
        ("writes", c_uint32),
        ("now_ns", c_uint64),
        ("driver_version", c_char * 80),
        ("faults", Fault * 16),
        ("events", Event * MAX_EVENTS),
        ("gpus", Gpu * 16),
    )


class FakeGpus:
    """The machine's GPUs: Hopper by default, 345 to 1980 MHz, 200 to 700 W, 80 GiB, 100 W idle, 700 W at full load."""

    def __init__(self, path: Path, *, count: int = 1) -> None:
        with path.open("wb") as file:
            file.truncate(ctypes.sizeof(State))
        self._take(path)
        self.state.size, self.state.gpu_count = ctypes.sizeof(State), count
        self.state.may_write = self.state.is_loaded = self.state.loads = (
            self.state.reload_code
        ) = 1
        self.state.now_ns = 1_000_000_000  # time stands still until a test moves it; 0 would be the real clock
        self.state.driver_version = b"580.65.06"
        for index in range(count):
            _lay_out(self.gpu(index), index)

    @classmethod
    def found(cls, path: Path) -> "FakeGpus | None":
        """The GPUs that another process laid out in this file; None where there are none of this layout."""
        if not path.exists() or path.stat().st_size != ctypes.sizeof(State):
            return None
        gpus = cls.__new__(cls)
        gpus._take(path)
        return gpus

    def _take(self, path: Path) -> None:
        self.path = path
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.state = State.from_buffer(self._map)

    def gpu(self, index: int) -> Gpu:
        gpu: Gpu = self.state.gpus[index]
        return gpu

    def environment(self, library: Path) -> dict[str, str]:
        """What a process needs in its environment to see these GPUs."""
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(library),
            STATE_VARIABLE: str(self.path),
        }

    def advance(self, seconds: float) -> None:
        self.state.now_ns += round(seconds * 1e9)

    def fail(self, function: str, code: int, *, times: int = -1, skip: int = 0) -> None:
        """Let a function answer with `code`, that many times or (-1) until `heal`, after `skip` good answers."""
        place = next(fault for fault in self.state.faults if fault.times == 0)
        place.function, place.code, place.skip, place.times = (
            function.encode(),
            code,
            skip,
            times,
        )

    def heal(self) -> None:
        for fault in self.state.faults:
            fault.times = 0

    def happens(self, xid: int, *, gpu: int = 0, kind: int = 0x8) -> None:
        """A critical error of the GPU; kind 0x8 is an Xid, 0x2 a double-bit ECC error."""
        place = self.state.events[self.state.event_count % MAX_EVENTS]
        place.gpu, place.instance, place.kind, place.data = gpu, 0xFFFFFFFF, kind, xid
        self.state.event_count += 1

    def run_processes(self, *processes: Process, gpu: int = 0) -> None:
        for place, process in enumerate(processes):
            self.gpu(gpu).processes[place] = process
        self.gpu(gpu).process_count = len(processes)

    def reload(self, *, version: str = "", code: int = 1) -> None:
        """Load the driver again: locks, limits and counters are as at first; sessions get `code` until they restart."""
        for index in range(self.state.gpu_count):
            gpu = self.gpu(index)
            gpu.lock_low = gpu.lock_high = gpu.energy_mj = gpu.lost = 0
            gpu.power_limit, gpu.energy_at_ns = gpu.power_default, self.state.now_ns
        self.state.driver_version = version.encode() or self.state.driver_version
        self.state.reload_code = code
        self.state.loads += 1

    def enable_mig(self, table: str = "H200", *, gpu: int = 0) -> None:
        """MIG mode is on, and nothing is sliced yet; `table`: a name in PROFILES."""
        self.gpu(gpu).mig_mode = 1
        for number, (name, identity, slices, sms, memory_mib, size, starts) in PROFILES[
            table
        ].items():
            place = self.gpu(gpu).profiles[number]
            place.name, place.id, place.slices, place.sms = (
                f"MIG {name}".encode(),
                identity,
                slices,
                sms,
            )
            place.most = place.start_count = len(starts)
            place.memory_mib, place.size = memory_mib, size
            place.starts[: len(starts)] = starts

    def devices(self, *, gpu: int = 0) -> list[tuple[str, int]]:
        """Profile and place of every slice that programs can use, in the order of places."""
        found = [each for each in self.gpu(gpu).slices if each.in_use]
        return sorted(
            ((each.name.decode().split()[-1], each.start) for each in found),
            key=lambda each: each[1],
        )

    def slice_up(self, *slices: Slice, gpu: int = 0) -> None:
        """MIG: the GPU in slices; one with `in_use` 0 leaves its place empty."""
        for place, each in enumerate(slices):
            self.gpu(gpu).slices[place] = each
        self.gpu(gpu).slice_count, self.gpu(gpu).mig_mode = len(slices), 1


def _lay_out(gpu: Gpu, index: int) -> None:
    gpu.uuid, gpu.name, gpu.architecture = (
        f"GPU-{index}".encode(),
        b"NVIDIA H100 80GB HBM3",
        9,
    )
    gpu.memory_total, gpu.memory_reserved, gpu.memory_used = 81920 * MIB, 640 * MIB, 0
    gpu.clock_low, gpu.clock_high, gpu.clock_step, gpu.clock_idle, gpu.clock_memory = (
        345,
        1980,
        15,
        345,
        2619,
    )
    gpu.power_low, gpu.power_high, gpu.power_default, gpu.power_limit = (
        200_000,
        700_000,
        700_000,
        700_000,
    )
    gpu.power_idle, gpu.power_busy = 100_000, 700_000
    gpu.energy_mj, gpu.energy_at_ns = 5_000_000, 1_000_000_000


def build_library(directory: Path) -> Path:
    """Compile the fake driver; the folder that holds it. Raises FileNotFoundError without a C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise FileNotFoundError(
            "no C compiler: the fake for libnvidia-ml.so.1 cannot be built"
        )
    directory.mkdir(parents=True, exist_ok=True)
    # The name inside is what the loader knows it by: once loaded, it is found wherever it lies.
    flags = [
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pthread",
        f"-Wl,-soname,{NAME}",
    ]
    subprocess.run(
        [compiler, *flags, "-o", str(directory / NAME), str(HERE / "fake_nvml.c")],
        check=True,
    )
    return directory


def use_here(library: Path) -> bool:
    """Load the fake driver into this process; False where a real one is loaded already: tests would change it."""
    ctypes.CDLL(str(library / NAME), mode=ctypes.RTLD_GLOBAL)
    size = getattr(ctypes.CDLL(NAME), "fake_nvml_state_size", None)
    assert size is None or size() == ctypes.sizeof(State), (
        "fake_gpus.py and fake_gpus.h differ"
    )
    return size is not None


def end_sessions() -> None:
    """End what a test left open in this process, so that the next one meets its own file."""
    shutdown = ctypes.CDLL(NAME).nvmlShutdown
    while shutdown() == 0:
        pass
