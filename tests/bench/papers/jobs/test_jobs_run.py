"""Runs of jobs: every dispatcher on the same stream; what is counted, and what stays true of any of them."""

from dataclasses import replace

import pytest

from agents.sim.truth.truth import load_truth
from app.simulate.scenario.carbon import GridIntensity
from bench.papers.jobs.report import JobsReport
from bench.papers.jobs.requests import JobRequest
from bench.papers.jobs.run import JobsRun, run_jobs
from bench.papers.oltunes_jobs import (
    CLUSTER,
    POLICIES,
    Case,
    cluster,
    history,
    make_dispatcher,
    make_settler,
    network_ratios,
    requests_of,
)
from solvers.papers.oltunes.affinity import COMPUTE_FROM
from solvers.types.state import Variant

TRUTH = load_truth()
GPUS = tuple(cluster())
CASE = Case(
    policy="oltunes", pattern="poisson", seed=3, length_s=6.0, warm_up_s=1.0, load=0.2
)


def play(policy: str, run: JobsRun) -> JobsReport:
    settler = make_settler(TRUTH, run.gpus, is_tuned=policy in ("oltunes", "joint"))
    settler.foresight.learn(history(TRUTH, run.gpus))
    return run_jobs(run, TRUTH, make_dispatcher(policy), settler)


def a_run(*requests: JobRequest, length_s: float = 6.0, **changes: object) -> JobsRun:
    return JobsRun(
        policy="test",
        gpus=GPUS,
        requests=requests or requests_of(CASE),
        length_s=length_s,
        preloaded=("resnet18", "resnet50"),
        **changes,  # type: ignore[arg-type]
    )


def a_request(name: str = "a", **changes: object) -> JobRequest:
    facts: dict[str, object] = {
        "kind": "k",
        "submitted_s": 0.5,
        "deadline_s": 3.0,
        "inputs": 64,
        "weight": 0.75,
        "variants": (Variant(network="resnet18", accuracy=0.7),),
    }
    return JobRequest(name=name, **facts | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(name, marks=() if name == "oltunes" else pytest.mark.thorough)
        for name in POLICIES
    ],
)
def test_every_job_is_finished_rejected_or_still_there_and_a_seed_says_all(
    policy: str,
) -> None:
    one, other = (play(policy, a_run(warm_up_s=1.0)) for _ in range(2))
    assert one == other
    assert one.jobs.finished + one.jobs.rejected <= one.jobs.submitted
    assert 0 <= one.jobs.late <= one.jobs.submitted
    assert one.jobs.p50_ms <= one.jobs.p99_ms <= 1000.0 * one.jobs.longest_s + 1e-6
    assert 0.0 <= one.utilisation_percent <= 100.0
    assert one.jobs.accuracy_loss_percent <= 4.0
    idle_j = 5.0 * sum(TRUTH.idle_w(gpu.gpu_type) for gpu in GPUS)
    assert one.energy_kwh >= idle_j / 3.6e6 - 1e-9


def test_a_full_queue_rejects_and_a_rejected_job_counts_as_late() -> None:
    flood = [a_request(f"j{number:03}", inputs=256) for number in range(100)]
    report = play("oltunes", a_run(*flood, queue_limit=10))
    assert report.jobs.rejected == 90
    assert report.jobs.late >= 90
    assert report.jobs.violations_percent >= 90.0


def test_a_job_that_is_not_done_at_the_end_is_late_only_once_its_deadline_has_passed() -> (
    None
):
    endless = {"inputs": 1_000_000}
    report = play(
        "oltunes",
        a_run(
            a_request("lost", deadline_s=3.0, **endless),
            a_request("open", deadline_s=90.0, **endless),
        ),
    )
    assert (report.jobs.finished, report.jobs.late) == (0, 1)
    # Their age at the end stands for the time that they will have taken.
    assert report.jobs.p99_ms == pytest.approx(5500.0)


def test_only_what_comes_after_the_warm_up_is_judged() -> None:
    report = play(
        "oltunes",
        a_run(
            a_request("early"),
            a_request("later", submitted_s=2.5, deadline_s=5.0),
            warm_up_s=2.0,
        ),
    )
    assert report.jobs.submitted == 1
    assert report.counted_s == 4.0


@pytest.mark.thorough
def test_carbon_is_energy_times_the_grids_intensity_of_the_moment() -> None:
    flat = play(
        "joint",
        a_run(a_request(), grid=GridIntensity(starts_s=(0.0,), g_per_kwh=(500.0,))),
    )
    assert flat.carbon_g == pytest.approx(500.0 * flat.energy_kwh)
    # Twice as much in the second half, whatever runs there.
    rising = play(
        "joint",
        a_run(
            a_request(),
            grid=GridIntensity(starts_s=(0.0, 3.0), g_per_kwh=(500.0, 1000.0)),
        ),
    )
    assert flat.carbon_g is not None
    assert rising.carbon_g is not None
    assert 1.3 * flat.carbon_g < rising.carbon_g < 1.7 * flat.carbon_g
    assert play("joint", a_run(a_request())).carbon_g is None


def test_the_papers_cluster_and_loads() -> None:
    assert {
        gpu.gpu_type: sum(one.gpu_type == gpu.gpu_type for one in GPUS) for gpu in GPUS
    } == CLUSTER
    jobs = requests_of(replace(CASE, length_s=60.0, load=1.0))
    # Table 7, Poisson: 60 + 40 + 25 + 5 + 2 a second.
    assert len(jobs) == pytest.approx(132 * 60, rel=0.05)
    language = [job for job in jobs if job.kind in ("bert", "gpt2")]
    assert sum(job.weight < 0.5 for job in language) == pytest.approx(
        0.9 * len(language), rel=0.06
    )


@pytest.mark.thorough
def test_ratios_are_measured_where_kernels_were_profiled() -> None:
    ratios = network_ratios()
    assert ratios["resnet50"] == pytest.approx(4.97011 / 1.30636, rel=1e-3)
    # All others by how sensitive they were found: the median one is just compute-intensive.
    assert COMPUTE_FROM in ratios.values()
    assert ratios["vgg16"] < COMPUTE_FROM < ratios["efficientnet_b0"]
