"""Which windows count, and when a cell is done: benches and the GPU say what a test wrote down."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

import pytest

from agents.gpu.nvml.types import GpuIdentity, GpuProcess, GpuSample
from agents.profiling import windows
from agents.profiling.cells import (
    BenchFailed,
    MeasurementCell,
    Member,
    NotSteady,
    make_cell,
)
from agents.profiling.journal import Measurement
from agents.profiling.messages import LoadBatch, Loaded, Order, Ready, RunWindow, Timed
from agents.profiling.watch import GpuWatch
from agents.profiling.windows import Rules, measure
from tests.agents.profiling.nodes import GPU, FakeGpu

RULES = Rules(window_s=0.02, pause_s=0.0, max_windows=6)
OURS, FOREIGN = 4_000_001, 4_000_002
"""No processes of this machine."""
Kind = TypeVar("Kind")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No one has to hear of a window before it begins."""
    monkeypatch.setattr(windows, "START_S", 0.0)


@dataclass
class ScriptedBench:
    """Each window has these times; the last one goes on for ever."""

    windows: Sequence[Sequence[float]]
    memory_mib: float | None = 120.0
    batch_ms: float = 1.0
    pid: int = OURS
    fails: str = ""
    asked: list[Order] = field(default_factory=list)

    @property
    def ready(self) -> Ready:
        return Ready(pid=self.pid, device="fake", sm_count=66)

    async def ask(self, order: Order, kind: type[Kind], *, limit_s: float) -> Kind:
        self.asked.append(order)
        if isinstance(order, LoadBatch):
            if self.fails:
                raise BenchFailed(self.fails)
            loaded = Loaded(batch_ms=self.batch_ms, memory_mib=self.memory_mib)
            return cast(Kind, loaded)
        number = sum(isinstance(each, RunWindow) for each in self.asked) - 1
        window = self.windows[min(number, len(self.windows) - 1)]
        return cast(Kind, Timed(latencies_ms=tuple(window)))


@dataclass
class ScriptedGpu(FakeGpu):
    """Each window sees these reasons and processes; the last one goes on for ever. A window begins with a sample."""

    reasons_by_sample: Sequence[tuple[str, ...]] = ((),)
    energies_j: Sequence[float] = ()
    used_mib: float = 0.0
    by_process: tuple[GpuProcess, ...] = ()

    def sample(self, gpu: GpuIdentity) -> GpuSample:
        number, self.samples = self.samples, self.samples + 1
        return GpuSample(
            memory_used_mib=self.used_mib,
            power_w=self.power_w,
            energy_j=self.energies_j[min(number, len(self.energies_j) - 1)]
            if self.energies_j
            else None,
            clock_mhz=self.clock_mhz,
            busy_percent=50.0,
            event_reasons=self.reasons_by_sample[
                min(number, len(self.reasons_by_sample) - 1)
            ],
        )

    def processes(self, gpu: GpuIdentity) -> tuple[GpuProcess, ...]:
        return (*self.by_process, *super().processes(gpu))


def a_cell(*batches: int, clock_mhz: float | None = None) -> MeasurementCell:
    return make_cell(
        [Member(network="a", batch=batch, sm_percent=50.0) for batch in batches],
        clock_mhz,
    )


def measured(
    *benches: ScriptedBench,
    gpu: FakeGpu | None = None,
    rules: Rules = RULES,
    clock_mhz: float | None = None,
    base_mib: float = 0.0,
) -> Measurement:
    watch = GpuWatch(gpu or FakeGpu(), GPU, is_ours=lambda pid: pid == OURS)
    cell = a_cell(*range(1, len(benches) + 1), clock_mhz=clock_mhz)
    return asyncio.run(measure(cell, benches, watch, rules, base_mib=base_mib))


def test_three_windows_that_agree_are_one_measurement() -> None:
    # Medians 10, 10.1, 10.2: (10.2 − 10) / 10.1 = 1.98 % apart. All nine batches together: mean 91.1 / 9.
    bench = ScriptedBench([[10.0, 9.0, 11.0], [10.1, 9.1, 11.1], [10.2, 9.2, 11.4]])
    found = measured(bench)
    (timing,) = found.timings
    assert found.windows == 3
    assert timing.spread == pytest.approx(0.2 / 10.1)
    assert timing.latency_ms == pytest.approx(91.1 / 9)
    assert (timing.latency_ms_p50, timing.latency_ms_p99) == (10.1, 11.4)
    assert (timing.batches, timing.memory_mib, timing.sm_count) == (9, 120.0, 66)
    assert (found.power_w, found.clock_mhz) == (100.0, 1380.0)


def test_a_p99_leaves_out_one_batch_of_a_hundred() -> None:
    # 3 · 100 batches, of which one in each window takes 50 ms: the 297th of 300 in order is 10, the last three are 50.
    found = measured(ScriptedBench([[10.0] * 99 + [50.0]]))
    assert found.timings[0].latency_ms_p99 == 10.0
    assert found.timings[0].latency_ms == pytest.approx((99 * 10.0 + 50.0) / 100)


def test_a_noisy_cell_is_repeated_until_the_last_three_agree() -> None:
    # 10, 14, 10, 10.1 do not agree within 3 % until the fifth window: 10, 10.1, 10.
    found = measured(ScriptedBench([[10.0], [14.0], [10.0], [10.1], [10.0]]))
    assert found.windows == 5
    assert found.timings[0].latency_ms == pytest.approx((10.0 + 10.1 + 10.0) / 3)


def test_a_cell_that_never_agrees_is_given_up_and_says_how_far_apart_it_was() -> None:
    bench = ScriptedBench([[10.0], [12.0], [10.0], [12.0], [10.0], [12.0]])
    # The last three: 12, 10, 12; (12 − 10) / 12 = 16.7 %.
    with pytest.raises(
        NotSteady, match=r"the last 3 of 6 windows lie 16\.7% apart, more than 3\.0%"
    ):
        measured(bench)


def test_in_a_pair_both_must_agree() -> None:
    steady, noisy = ScriptedBench([[5.0]]), ScriptedBench([[10.0], [14.0], [10.0]])
    found = measured(steady, noisy)
    # 10, 14, 10, 10, 10: the third window in a row that agrees is the fifth.
    assert found.windows == 5
    assert [each.latency_ms for each in found.timings] == [5.0, 10.0]
    windows = [
        [each for each in bench.asked if isinstance(each, RunWindow)]
        for bench in (steady, noisy)
    ]
    assert windows[0] == windows[1], "the same seconds"


@pytest.mark.parametrize(
    "reason", ["power limit", "heat (hardware)", "hardware slowdown"]
)
def test_a_window_in_which_the_clock_was_held_back_does_not_count_and_is_told(
    reason: str,
) -> None:
    gpu = ScriptedGpu(reasons_by_sample=((reason,), ()))
    found = measured(ScriptedBench([[99.0], [10.0]]), gpu=gpu)
    assert found.windows == 4
    assert found.timings[0].latency_ms == 10.0, (
        "the 99 ms of the first window are not in it"
    )
    assert found.rejected == (f"clock held back by {reason}",)


def test_a_limit_that_the_rules_accept_is_told_and_counts() -> None:
    gpu = ScriptedGpu(reasons_by_sample=(("power limit",),))
    rules = replace(RULES, accepted=frozenset(["power limit"]))
    found = measured(ScriptedBench([[10.0]]), gpu=gpu, rules=rules)
    assert (found.windows, found.rejected) == (3, ())
    assert found.held_back_by == ("power limit",)
    with pytest.raises(NotSteady, match=r"6 × clock held back by heat \(hardware\)"):
        measured(
            ScriptedBench([[10.0]]),
            gpu=ScriptedGpu(reasons_by_sample=(("heat (hardware)", "power limit"),)),
            rules=rules,
        )


def test_beside_a_foreign_process_nothing_is_measured() -> None:
    gpu = FakeGpu(foreign=(FOREIGN,))
    with pytest.raises(
        NotSteady,
        match=f"0 of 6 windows counted, 3 are needed: 6 × foreign process {FOREIGN}",
    ):
        measured(ScriptedBench([[10.0]]), gpu=gpu)


def test_our_own_process_is_none_and_its_memory_is_the_drivers() -> None:
    gpu = ScriptedGpu(
        by_process=(GpuProcess(pid=OURS, memory_mib=777.0, is_mps=True),),
        used_mib=5000.0,
    )
    assert measured(ScriptedBench([[10.0]]), gpu=gpu).timings[0].memory_mib == 777.0


def test_memory_is_what_the_gpu_took_on_where_the_driver_does_not_tell_of_processes() -> (
    None
):
    # 1500 now, 900 before: 600 MiB with its context; next to another it is unknown whose they are.
    gpu = ScriptedGpu(used_mib=1500.0)
    steady, silent = ScriptedBench([[10.0]]), ScriptedBench([[10.0]], memory_mib=None)
    alone = measured(steady, gpu=gpu, base_mib=900.0)
    assert alone.timings[0].memory_mib == 600.0
    pair = measured(ScriptedBench([[10.0]]), silent, gpu=gpu, base_mib=900.0)
    assert [each.memory_mib for each in pair.timings] == [120.0, None]


def test_power_is_the_counters_where_there_is_one() -> None:
    # The counter moves 1000 J in every sample, so far more than 100 W.
    gpu = ScriptedGpu(energies_j=[1000.0 * number for number in range(1000)])
    power_w = measured(ScriptedBench([[10.0]]), gpu=gpu).power_w
    assert power_w is not None
    assert power_w > 1000.0


def test_a_clock_that_is_not_the_locked_one_is_told() -> None:
    with pytest.raises(NotSteady, match="6 × clock at 1380 to 1380 MHz, not at 900"):
        measured(ScriptedBench([[10.0]]), clock_mhz=900.0)
    assert measured(ScriptedBench([[10.0]]), clock_mhz=1365.0).windows == 3


def test_a_window_without_a_whole_batch_does_not_count() -> None:
    assert measured(ScriptedBench([[], [10.0]])).rejected == (
        "no whole batch within 0.02 s",
    )


def test_slow_batches_get_longer_windows() -> None:
    bench = ScriptedBench([[40.0]], batch_ms=4.0)
    measured(bench)
    # Ten batches of 4 ms behind the first fifth: 0.04 / 0.8 = 0.05 s, more than 0.02.
    windows = [each for each in bench.asked if isinstance(each, RunWindow)]
    assert windows[0].window_s == pytest.approx(0.05)
    assert windows[0].skip_s == pytest.approx(0.01)


def test_a_batch_that_does_not_fit_is_said() -> None:
    with pytest.raises(BenchFailed, match="out of memory"):
        measured(ScriptedBench([[1.0]], fails="a: out of memory"))
