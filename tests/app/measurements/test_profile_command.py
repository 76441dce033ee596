"""The command as people give it: the files that it writes are read by `plimsoll fit`; killed, nothing is left."""

import csv
import os
import signal
from pathlib import Path

import pytest

from app.measurements.csv_files import read_samples
from tests.agents.fakes.nvml.fake_gpus import FakeGpus, Process
from tests.agents.fakes.nvml.fixtures import fake, library
from tests.app.measurements.commands import Machine, machine
from tests.app.runner import cli
from tests.waiting import PATIENCE_S, until

__all__ = ["fake", "library"]
pytestmark = pytest.mark.integration


@pytest.fixture
def here(
    tmp_path_factory: pytest.TempPathFactory, library: Path, fake: FakeGpus
) -> Machine:
    # Short, since MPS takes 87 characters.
    return machine(tmp_path_factory.mktemp("p"), library, fake)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_samples_have_the_known_times_and_can_be_fitted_although_nothing_answers_a_send(
    here: Machine,
) -> None:
    here.environment["PLIMSOLL_URL"] = "http://127.0.0.1:9"
    here.environment["PLIMSOLL_TOKEN"] = "plim_admin_secret"
    code, out, err = here.run(
        "--network", "resnet50", "--shares", "50,100", "--batches", "1,4", "--send"
    )
    assert code == 1
    assert "127.0.0.1:9" in err
    assert f"Wrote {here.samples}" in out
    assert "4 of 4" in err
    rows = rows_of(here.samples)
    details = rows_of(here.samples.with_suffix(".details.csv"))
    assert len(rows) == 4
    for row, detail in zip(rows, details, strict=True):
        batch, share = int(row["batch"]), float(row["sm_percent"])
        # See fake_bench: (2 + batch) · 100 / share ms, and 100 + batch MiB; the fake GPU idles at 100 W.
        latency_ms = (2 + batch) * 100.0 / share
        assert float(row["latency_ms"]) == pytest.approx(latency_ms, rel=0.01)
        assert float(row["memory_mib"]) == 100.0 + batch
        assert float(row["power_w"]) == pytest.approx(100.0, rel=0.01)
        assert "clock_mhz" not in row
        assert float(detail["latency_ms_p50"]) == pytest.approx(latency_ms, rel=0.01)
        assert detail["sm_count"] == ("132" if share == 100.0 else "66")
        assert (detail["windows"], detail["p99_is_indicative"]) == ("3", "yes")
    assert here.left() == []
    assert list((here.directory / "t").iterdir()) == []
    fitted = cli("fit", here.samples, "-o", here.directory / "fit.json")
    assert fitted.code == 0, fitted.err
    assert "resnet50" in fitted.out


@pytest.mark.thorough  # Each pair by itself: tests/agents/profiling/test_profiler.py.
def test_pairs_are_measured_in_the_same_seconds_and_name_each_other(
    here: Machine,
) -> None:
    code, _, err = here.run(
        "--network=a",
        "--network=b",
        "--shares=100",
        "--batches=2",
        "--pairs",
        "--pair-shares=25:75",
    )
    assert code == 0, err
    found = {
        (row["network"], row["sm_percent"], row["neighbours"]): float(row["latency_ms"])
        for row in rows_of(here.samples)
    }
    # Alone (2 + 2) · 100 / 100 = 4 ms; side by side half as much more: 4 · 4 · 1.5 at 25 % and 4 · 4/3 · 1.5 at 75 %.
    expected = {("a", "100", ""): 4.0, ("b", "100", ""): 4.0}
    for one, other in (("a", "a"), ("a", "b"), ("b", "b")):
        expected[one, "25", f"{other}:2:75"] = 24.0
        expected[other, "75", f"{one}:2:25"] = 8.0
    assert found == {
        key: pytest.approx(value, rel=0.02) for key, value in expected.items()
    }
    # `samples send` and `fit` read such files alike.
    assert len(read_samples([here.samples]).samples) == 8


@pytest.mark.thorough  # On a real profiler: tests/agents/profiling/test_profiler.py.
def test_a_plan_of_points_is_measured_without_touching_clocks(
    here: Machine, fake: FakeGpus
) -> None:
    plan = here.directory / "points.csv"
    head = "network,gpu_type,batch,sm_percent,clock_mhz"
    plan.write_text(
        f"{head}\nr,V100-32GB,2,50,1380\nr,V100-32GB,2,50,900\nr,T4,1,50,900\n",
        encoding="utf-8",
    )
    code, _, err = here.run("--plan", str(plan))
    assert code == 0, err
    assert "are of another GPU type than V100-32GB" in err
    assert "without --clocks no clock is locked" in err
    (row,) = rows_of(here.samples)
    assert (row["network"], row["batch"], row["sm_percent"]) == ("r", "2", "50")
    assert fake.state.writes == 0


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGTERM, marks=pytest.mark.thorough),
        pytest.param(signal.SIGINT, marks=pytest.mark.thorough),
    ],
)
def test_killed_in_the_middle_nothing_is_left_running_and_resume_goes_on(
    here: Machine, fake: FakeGpus, number: signal.Signals
) -> None:
    words = ("--network=r", "--shares=100", "--batches=1,2,4", "--clocks=900")
    fake.gpu(0).load_percent = 100
    # The last cell, so that none but the signal ends the profile.
    hang = here.signs / "hang.4"
    hang.touch()
    process = here.start(*words)
    assert process.stderr is not None
    while not process.stderr.readline().startswith("1 of 3: "):
        assert process.poll() is None
    os.kill(process.pid, number)
    hang.unlink()
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode in (-signal.SIGKILL, 130)
    until(lambda: here.left() == [])
    assert (fake.gpu(0).lock_low, fake.gpu(0).lock_high) == (0, 0)
    assert list((here.directory / "t").iterdir()) == []
    code, _, err = here.run(*words, "--resume")
    assert code == 0, err
    first, *_ = err.splitlines()
    done = int(first.removeprefix("3 cells, ").split()[0])
    assert 1 <= done < 3
    assert sum(" of 3: " in line for line in err.splitlines()) == 3 - done
    assert len(rows_of(here.samples)) == 3


def test_a_gpu_that_somebody_uses_is_not_profiled(
    here: Machine, fake: FakeGpus
) -> None:
    fake.run_processes(Process(pid=os.getpid(), memory=1 << 20))
    code, _, err = here.run("--network", "r", "--shares", "50", "--batches", "1")
    assert code == 1
    assert f"GPU 0 is not free: processes {os.getpid()} (" in err
    assert not here.samples.exists()
    assert here.left() == []
