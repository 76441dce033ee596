"""The timed engine: its times, its sums, and the GPU that it acts as."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from agents.base.device import LaunchFailed
from agents.serving.engines.errors import EngineFailed
from agents.serving.engines.sm_count import sm_percent_of
from agents.serving.engines.tensors import Tensor, unpack_numbers
from agents.serving.engines.timed_engine import TimedEngine, load_times, read_times
from tests.agents.harness import fp32


def fake(
    times: str = "1:5,8:12",
    *,
    sms: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[TimedEngine, list[float]]:
    """An engine, and the seconds that it sleeps."""
    slept: list[float] = []
    engine = TimedEngine(
        times=read_times(times),
        sms=sms,
        memory_mib=900.0,
        environment=environment or {},
        sleep=slept.append,
    )
    return engine, slept


@pytest.mark.parametrize(
    ("text", "rows", "ms"),
    [
        ("1:5,8:12", 1, 5.0),
        ("1:5,8:12", 4, 8.0),  # 5 + 7 * 3/7
        ("1:5,8:12", 8, 12.0),
        ("1:5,8:12", 15, 19.0),  # the line goes on: 12 + 7 * 7/7
        # Below the first point and with one point times are level.
        ("4:10,8:14", 1, 10.0),
        ("4:10,8:14", 4, 10.0),
        ("4:10", 1, 10.0),
        ("4:10", 400, 10.0),
        ("1:10,2:1", 100, 0.0),
    ],
)
def test_times_lie_on_straight_lines(text: str, rows: int, ms: float) -> None:
    assert read_times(text).ms(rows) == pytest.approx(ms)


def test_times_come_from_a_file_too(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("batch,network,execution_ms\n8,resnet,12\n1,resnet,5\n")
    assert load_times(path) == read_times("1:5,8:12")


@pytest.mark.parametrize(
    "text", ["", "1", "1:x", "x:1", "0:5", "1:5,1:6", "1:-1", "1:nan", "1:inf", "1:5,,"]
)
def test_times_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(LaunchFailed):
        read_times(text)


def test_each_row_is_answered_by_its_sum_after_the_batchs_time() -> None:
    engine, slept = fake()
    x = Tensor(
        name="x",
        datatype="INT32",
        shape=(2, 2),
        data=b"".join(n.to_bytes(4, "little") for n in (1, 2, 3, 4)),
    )
    outputs = engine.run((x, fp32(0.5, 0.25, name="y")))
    # 1 + 2 and 3 + 4; each number of y is a row of its own. Two rows: 5 + 7 * 1/7 = 6 ms.
    assert [(each.name, each.shape, unpack_numbers(each)) for each in outputs] == [
        ("x", (2,), [3.0, 7.0]),
        ("y", (2,), [0.5, 0.25]),
    ]
    assert slept == [pytest.approx(0.006)]


def test_offloaded_it_holds_nothing_and_runs_nothing() -> None:
    engine, slept = fake()
    engine.warm_up(8)
    assert slept == [pytest.approx(0.012)]
    engine.offload()
    assert engine.facts().memory_mib == 0.0
    with pytest.raises(EngineFailed, match="offloaded"):
        engine.run((fp32(1.0),))
    engine.resume()
    assert (engine.facts().memory_mib, len(engine.run((fp32(1.0),)))) == (900.0, 1)
    assert (engine.facts().device, engine.facts().sm_count) == ("cpu", None)


@pytest.mark.parametrize(
    ("percent", "sms"),
    [
        ("50", 66),
        ("33.3", 42),  # 132 * 0.333 = 43.96; down to 43, and to whole steps of two
        ("100", 132),
        ("0.5", 2),  # never nothing
    ],
)
def test_a_fake_gpu_grants_whole_steps_rounded_down(
    tmp_path: Path, percent: str, sms: int
) -> None:
    environment = {
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": percent,
    }
    engine, _ = fake(sms=132, environment=environment)
    # Without a control daemon all of it, as CUDA does.
    assert engine.facts().sm_count == 132
    (tmp_path / "control").touch()
    engine, _ = fake(sms=132, environment=environment)
    assert engine.facts().sm_count == sms


@pytest.mark.parametrize("text", ["0", "-1", "101", "nan", "half"])
def test_a_share_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(LaunchFailed, match="CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"):
        sm_percent_of({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": text})
