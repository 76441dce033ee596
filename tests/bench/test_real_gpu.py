"""The measuring scripts as a person calls them, every step to its end on a machine with fake GPU and MPS.

What takes more than five seconds runs in the night; what stays calls the probe and `solo`, and says no to wrong words.
"""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.measured_sets import load_own
from bench.real_gpu.commands import NEEDED
from tests.agents.fakes.nvml.fixtures import library
from tests.bench.real_gpu_machine import ROOT, Machine
from tests.ports import own_environment
from tests.waiting import PATIENCE_S, until

__all__ = ["library"]
pytestmark = pytest.mark.integration
# Enough cells that a busy machine, which looks at the table late, still finds the command at work.
SIX_CELLS = ("solo", "--shares", "10,20,30,50,75,100")


@pytest.fixture
def machine(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Machine:
    # Short, since MPS takes 87 characters.
    return Machine(directory=tmp_path_factory.mktemp("g"), library=library)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Machine:
    """A machine on which everything was measured once."""
    machine = Machine(directory=tmp_path_factory.mktemp("g"), library=library)
    for _ in range(5):
        answer = machine.run("all", "--budget-s", "7200")
        # Where other work disturbs the windows of a cell it is left out, and the same command tries it again.
        if "cells were left out" not in answer.out:
            break
    assert answer.code == 0, answer.out + answer.err
    return machine


@pytest.mark.thorough
def test_the_probe_answers_every_question_and_shadow_switches_lose_no_request(
    measured: Machine,
) -> None:
    answers = {row["question"]: row["answer"] for row in measured.rows("probe.csv")}
    assert answers["gpu"] == "NVIDIA H100 80GB HBM3"
    assert answers["driver_version"] == "580.65.06"
    for question in (
        "mps",
        "gpm",
        "memory_limit_is_kept",
        "terminate_client_harms_nobody_else",
    ):
        assert answers[question] == "yes", question
    table = measured.rows("sm_table.csv")
    assert [float(row["sm_percent"]) for row in table] == [
        5.0 * step for step in range(1, 21)
    ]
    # 5 % of 132 are 6.6, in pairs 6; 35 % are 46.2; 100 % are all.
    assert [table[at]["sm_count"] for at in (0, 6, 19)] == ["6", "46", "132"]
    assert {row["is_as_expected"] for row in table} == {"yes"}
    switches = measured.rows("switch.csv")
    shares = [(row["from_sm_percent"], row["to_sm_percent"]) for row in switches]
    assert shares == [("40", "60"), ("60", "30"), ("30", "50")]
    for row in switches:
        assert (row["failures"], row["first_failure"]) == ("0", "")
        assert min(int(row["requests_before"]), int(row["requests_during"])) > 5
        # A batch of the fake takes 5 ms.
        assert float(row["latency_ms_p99_during"]) >= 5.0
    # A call of a writer would have killed its caller, see `Machine`; and the driver counts its writes.
    assert measured.gpus.state.writes == 0
    assert measured.gpus.gpu(0).lock_high == 0


@pytest.mark.thorough
def test_the_set_says_where_it_comes_from_is_read_as_samples_and_not_made_twice(
    measured: Machine,
) -> None:
    text = (measured.set / "SOURCE.md").read_text()
    for words in (
        "**Made by the fake: these are not measurements of any GPU.**",
        "GPU: NVIDIA H100 80GB HBM3, 81920 MiB, SMs: 132",
        "Driver: 580.65.06",
        "Apache-2.0",
        "`switch.csv` (3",
        "`python -m bench.real_gpu all --fake",
    ):
        assert words in text
    assert str(measured.directory) not in text
    samples = load_own(measured.set)
    # Alone at 50 and 100 %; of the pairs alone at four shares, twelve times next to training and six to itself.
    assert len(samples) == 24
    assert sum(bool(neighbours) for neighbours in samples.at.neighbours) == 18
    before = {path.name: path.read_bytes() for path in measured.set.glob("*.csv")}
    again = measured.run("all", "--budget-s", "7200")
    assert again.code == 0, again.out + again.err
    assert again.out.count("measured already") == 3
    after = {path.name: path.read_bytes() for path in measured.set.glob("*.csv")}
    assert after == before
    assert measured.left() == []
    assert list((measured.directory / "t").iterdir()) == []


@pytest.mark.thorough
@pytest.mark.parametrize("is_killed", [False, True])
def test_interrupted_it_puts_everything_away_and_goes_on_behind_what_it_has(
    machine: Machine, is_killed: bool
) -> None:
    process = machine.start(*SIX_CELLS)
    until(lambda: (machine.set / "solo.csv").exists() and machine.rows("solo.csv"))
    process.send_signal(signal.SIGKILL if is_killed else signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    if not is_killed:
        assert process.returncode == 130, err
        assert "interrupted; the same command goes on" in out
        assert machine.left() == []
        assert (machine.set / "SOURCE.md").exists()
    until(lambda: machine.left() == [])
    before = machine.rows("solo.csv")
    assert len(before) < 6
    again = machine.run(*SIX_CELLS)
    assert again.code == 0, again.out + again.err
    assert f"6 cells, {len(before)} measured already" in again.out
    rows = machine.rows("solo.csv")
    assert len(rows) == 6
    assert all(row in rows for row in before)


def test_when_the_budget_is_over_it_says_what_is_left(machine: Machine) -> None:
    # Starting MPS and the first process takes longer than that.
    answer = machine.run("all", "--budget-s", "0.1")
    assert answer.code == 3
    assert (
        "agent: the budget is over before it: run the same command again" in answer.out
    )
    assert not (machine.set / "agent.csv").exists()


@pytest.mark.thorough
def test_without_mps_the_probe_says_why_and_whole_gpus_are_measured(
    machine: Machine,
) -> None:
    machine.has_mps = False
    assert machine.run("probe").code == 0
    answers = {row["question"]: row for row in machine.rows("probe.csv")}
    assert answers["mps"]["answer"] == "no"
    assert "nvidia-cuda-mps-control is not in PATH" in answers["mps"]["detail"]
    assert "memory_limit_is_kept" not in answers
    shares = machine.run("share")
    assert shares.code == 1
    assert "need MPS, which cannot be used here" in shares.err
    assert machine.run("switch").err.startswith(
        "switch: this step needs MPS, which cannot be used here: nvidia-cuda-mps"
    )
    solo = machine.run("solo")
    assert solo.code == 0, solo.err
    assert [row["sm_percent"] for row in machine.rows("solo.csv")] == ["100"]


@pytest.mark.thorough
def test_a_limit_that_is_not_kept_and_a_client_that_works_on_are_told(
    machine: Machine,
) -> None:
    machine.words["REHEARSAL"] = "no-limit,deaf"
    machine.knows_sms()
    assert machine.run("probe").code == 0
    answers = {row["question"]: row for row in machine.rows("probe.csv")}
    assert answers["memory_limit_is_kept"]["answer"] == "no"
    assert (
        "4096 MiB were granted of 4096 asked for under a limit of 2048"
        in answers["memory_limit_is_kept"]["detail"]
    )
    assert answers["terminate_client_harms_nobody_else"]["answer"] == "no"


def test_without_a_driver_or_a_gpu_of_that_number_it_says_so(machine: Machine) -> None:
    absent = machine.run("probe", "--gpu", "3")
    assert (absent.code, absent.err) == (1, "Error: no GPU 3; this machine has [0]\n")
    machine.words["LD_LIBRARY_PATH"] = ""
    machine.gpus.state.is_loaded = 0
    nothing = machine.run("probe")
    assert nothing.code == 1
    assert nothing.err.startswith("No GPU here: ")
    assert "nvidia-smi must list the GPU" in nothing.err


def test_a_set_of_another_shape_is_not_overwritten(machine: Machine) -> None:
    machine.set.mkdir()
    (machine.set / "solo.csv").write_text("model,ms\nresnet50,3\n")
    answer = machine.run("solo")
    assert answer.code == 1
    assert (
        "solo.csv has the columns model, ms; these scripts write network" in answer.err
    )
    assert (machine.set / "solo.csv").read_text() == "model,ms\nresnet50,3\n"


def test_nothing_else_must_be_installed() -> None:
    # What all modules import, by the folder of installed packages; some packages bring others of their own.
    names = ("commands", "source", "bench", "client", "profiling")
    text = "\n".join(
        (
            *(f"import bench.real_gpu.{name}" for name in names),
            "import agents.serving.process, agents.profiling.cleanup_process, sys",
            "named = {name.split('.')[0] for name, module in sys.modules.items() "
            "if 'site-packages' in (getattr(module, '__file__', None) or '')}",
            "print(*sorted(named))",
        )
    )
    done = subprocess.check_output(
        [sys.executable, "-c", text],
        text=True,
        cwd=ROOT,
        # `make coverage` would be found there, too.
        env=own_environment("COVERAGE_"),
    )
    of_aiohttp = (
        "_brotli brotli aiodns aiohappyeyeballs aiosignal attr frozenlist idna "
        "multidict propcache yarl typing_extensions charset_normalizer"
    )
    may_be_there = {"_distutils_hack", *of_aiohttp.split()}
    assert set(done.split()) - may_be_there <= set(NEEDED)
