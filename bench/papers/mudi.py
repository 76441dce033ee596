"""Mudi's own experiments as tables: training next to services on 12 and on 1000 A100s, and the decisions themselves.

Run: `python -m bench.papers --only Mudi [--quick]`. The scenarios are built by `bench.papers.mudi_scenario`; all
policies of one face the same requests and tasks, one service per GPU, in the production loop. Each policy fills with
its own technique.

Times of training under SM limits come from a script (agents/sim/truth/training.py), so that every row in which training
runs is `synthetic` and reproduces nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from app.simulate.run.build import shipped_catalogue
from app.simulate.run.results import RunResult
from app.simulate.run.run import SimulationRun, jobs_of
from app.simulate.run.runner import make_runner, simulate_all
from bench.papers.mudi_batches import LARGEST, search_batches
from bench.papers.mudi_cases import SAME, Decisions, compare, decide, judge
from bench.papers.mudi_metrics import (
    completion_by_kind,
    factors,
    late_percent,
    mean_completion_s,
    mean_normalised_completion,
    mean_waiting_s,
    trained_percent,
    unfinished_percent,
    used_percent,
    worst_late_percent,
)
from bench.papers.mudi_scenario import (
    KINDS,
    Setting,
    make_scenario,
)
from bench.papers.table import Row, Table

SYSTEM = "Mudi"
OURS = "mudi"
BASELINES = ("gslice", "muxflow", "gpulets")
POLICIES = (OURS, *BASELINES, "joint")
SCENARIO = "bench/papers/mudi_scenario.py:make_scenario"
LOAD = 0.8
HEAVY = 2.0
"""More than any policy gets done, so that training takes all that it is given."""

_SUBSTITUTES = (
    "GPT-2, BERT, RoBERTa and YOLOS are stood in for by other networks, seven of the "
    "nine kinds of training too."
)
_NORMALISED = "completion over the time alone, x"
_UNFINISHED = "A task that is not done when the run ends counts with the time that it has been there."
_ONE_PER_GPU = (
    "Every policy has one service per GPU, as in the paper; it says how shares are "
    "set and where training goes."
)
_PROMISES = (
    "Baselines take SMs without asking what training does to the services' percentiles; `mudi` and `joint` let no task "
    "run where the capacity law says that a promise would break, and pay for it with longer completion."
)
_TRIED = (
    "Why 2.27 is not reached: services leave 60 to 80 % of the SMs under every policy, and heavy training gets less "
    "than that next to a promise; less room (ROOM 1.0 to 1.25), other thresholds to join (GAIN 0 to 0.2) and moving "
    "slow tasks changed completion by 7 % at most."
)

Runs = Mapping[str, Sequence[RunResult]]
"""By policy, one run per seed."""


def tables(quick: bool) -> tuple[Table, ...]:
    """All of them; quick: shorter runs with one seed, fewer policies and cases, and 24 GPUs in place of 1000."""
    policies = (OURS, "gslice", "joint") if quick else POLICIES
    seeds = (1,) if quick else (1, 2, 3)
    duration_s = 480.0 if quick else 1860.0
    small = _runs(
        [
            Setting(policies=policies, duration_s=duration_s, load=LOAD, seed=seed)
            for seed in seeds
        ]
    )
    found = [_small(small, seeds, duration_s), _kinds(small, seeds)]
    if not quick:
        found.append(_sweep(policies, duration_s))
    return (
        *found,
        _large(policies, quick=quick),
        _decisions(quick),
        _batches(quick),
        _colocation(quick),
    )


def _runs(settings: Sequence[Setting]) -> Runs:
    jobs: list[SimulationRun] = []
    for setting in settings:
        scenario = make_scenario(setting)
        jobs.extend(jobs_of(scenario, shipped_catalogue(scenario), Path()))
    runs: dict[str, list[RunResult]] = {}
    for outcome in simulate_all(jobs, make_runner(1)):
        if not isinstance(outcome, RunResult):
            raise SystemExit(f"A run failed: {outcome}")
        runs.setdefault(outcome.policy, []).append(outcome)
    return runs


def _small(runs: Runs, seeds: Sequence[int], duration_s: float) -> Table:
    return Table(
        system=SYSTEM,
        title=f"12 GPUs, training at {LOAD:g} of what all GPUs do alone, {duration_s / 60.0:.0f} minutes",
        scenario=SCENARIO,
        seeds=tuple(seeds),
        rows=(
            *_rows(
                runs,
                "requests in violation, %",
                late_percent,
                paper=0.5,
                demanded=0.5,
                is_at_least=False,
            ),
            *_rows(
                runs,
                "in violation, worst service, %",
                worst_late_percent,
                is_at_least=False,
                demanded=2.0,
            ),
            *_rows(runs, "completion time, s", mean_completion_s, is_at_least=False),
            *_rows(runs, _NORMALISED, mean_normalised_completion, is_at_least=False),
            *_shorter(runs),
            *_rows(runs, "waiting per task, s", mean_waiting_s, is_at_least=False),
            *_rows(runs, "unfinished tasks, %", unfinished_percent, is_at_least=False),
            *_rows(runs, "cost, USD", lambda run: run.cost_usd, is_at_least=False),
        ),
        notes=(_SUBSTITUTES, _ONE_PER_GPU, _UNFINISHED, _PROMISES, _TRIED),
    )


def _shorter(runs: Runs) -> list[Row]:
    """By how much training is done sooner than under the baselines: the best kind and baseline, and the worst kind."""
    rivals = [policy for policy in (*BASELINES, "joint") if policy in runs]
    shorter = {
        policy: [
            factors(mine, theirs)
            for mine, theirs in zip(runs[OURS], runs[policy], strict=True)
        ]
        for policy in rivals
    }
    rows = []
    for policy in rivals:
        best, worst, mean = (
            tuple(pick(list(each.values())) for each in shorter[policy])
            for pick in (max, min, fmean)
        )
        is_papers = policy in BASELINES
        rows += [
            _row(
                f"completion, best kind, {policy} over mudi, x",
                best,
                paper=2.27 if is_papers else None,
                demanded=2.27 if is_papers else None,
            ),
            _row(
                f"completion, worst kind, {policy} over mudi, x",
                worst,
                demanded=1.0 if is_papers else None,
            ),
            _row(f"completion, mean of kinds, {policy} over mudi, x", mean),
        ]
    return rows


def _kinds(runs: Runs, seeds: Sequence[int]) -> Table:
    return Table(
        system=SYSTEM,
        title="12 GPUs, completion time of each kind of training",
        scenario=SCENARIO,
        seeds=tuple(seeds),
        rows=tuple(
            _row(
                f"time of {kind.name}, s",
                tuple(values),
                policy=policy,
                is_at_least=False,
            )
            for kind in KINDS
            for policy, each in runs.items()
            if (
                values := [
                    by_kind[kind.name]
                    for run in each
                    if kind.name in (by_kind := completion_by_kind(run))
                ]
            )
        ),
        notes=(_UNFINISHED,),
    )


def _sweep(policies: Sequence[str], duration_s: float) -> Table:
    """Violations and completion under less and more training; SM utilisation where there is more than is done."""
    rows: list[Row] = []
    for load in (0.4, HEAVY):
        runs = _runs(
            [Setting(policies=policies, duration_s=duration_s, load=load, seed=1)]
        )
        rows += _rows(
            runs,
            f"requests in violation at {load:g}, %",
            late_percent,
            is_at_least=False,
        )
        rows += _rows(
            runs, f"completion at {load:g}, s", mean_completion_s, is_at_least=False
        )
        rows += _rows(
            runs,
            f"{_NORMALISED} at {load:g}",
            mean_normalised_completion,
            is_at_least=False,
        )
        if load == HEAVY:
            rows += _rows(
                runs, "GPU time that training makes use of, %", trained_percent
            )
            rows += _rows(runs, "GPU time that both make use of, %", used_percent)
            rows += [
                row
                for rival in policies
                if rival != OURS
                for row in _more_used(runs[OURS][0], runs[rival][0], rival)
            ]
    return Table(
        system=SYSTEM,
        title="12 GPUs, sweep over the load of training",
        scenario=SCENARIO,
        seeds=(1,),
        rows=rows,
        notes=(
            "SM utilisation is what gets done, in hours of GPUs that do nothing else, over the hours of all GPUs; a "
            "request counts with its part of the largest batch. The paper's 37 % are of all SMs in use.",
            _PROMISES,
        ),
    )


def _large(policies: Sequence[str], *, quick: bool) -> Table:
    nodes, duration_s = (6, 180.0) if quick else (250, 240.0)
    runs = _runs(
        [
            Setting(
                policies=policies[:2] if quick else policies,
                duration_s=duration_s,
                load=0.6,
                seed=1,
                nodes=nodes,
            )
        ]
    )
    return Table(
        system=SYSTEM,
        title=f"{4 * nodes} GPUs, {duration_s / 60.0:.0f} minutes",
        scenario=SCENARIO,
        seeds=(1,),
        rows=(
            *_rows(
                runs,
                "requests in violation, %",
                late_percent,
                paper=1.2,
                demanded=1.2,
                is_at_least=False,
            ),
            *_rows(runs, "completion time, s", mean_completion_s, is_at_least=False),
            *_rows(runs, "unfinished tasks, %", unfinished_percent, is_at_least=False),
        ),
        notes=(
            "The run is shorter than the paper's: most long tasks are not done at its end.",
            _UNFINISHED,
        ),
    )


def _decisions(quick: bool) -> Table:
    rows: list[Row] = []
    for gpus, limit_ms in ((12, 18.0), (1000, 30.0)):
        found: list[Decisions] = [
            decide(gpus, seed, tasks=10) for seed in range(2 if quick else 10)
        ]
        rows += [
            _row(
                f"decision on one task, {gpus} GPUs, ms",
                tuple(fmean(each.milliseconds) for each in found),
                limit_ms,
                limit_ms,
                is_at_least=False,
            ),
            _row(
                f"longest decision, {gpus} GPUs, ms",
                tuple(max(each.milliseconds) for each in found),
                is_at_least=False,
            ),
            _row(
                f"batches tried at most, {gpus} GPUs",
                tuple(float(max(each.trials)) for each in found),
                25.0,
                24.0,
                is_at_least=False,
            ),
        ]
    return Table(
        system=SYSTEM,
        title="one multiplexing decision: which GPU, batch, shares",
        scenario="bench/papers/mudi_cases.py:decide",
        seeds=tuple(range(2 if quick else 10)),
        rows=rows,
        notes=(
            "The planner alone, on this machine; the slides' times are of a middleware that also moves tasks.",
        ),
    )


def _batches(quick: bool) -> Table:
    """GP-LCB over 32 batches; the catalogue's four to six are all but tried anyway."""
    seeds = tuple(range(3 if quick else 40))
    found = [each for seed in seeds if (each := search_batches(seed)) is not None]
    over_least = [each.over_least for each in found]
    return Table(
        system=SYSTEM,
        title=f"the search for a batch among {LARGEST}, one GPU with one task",
        scenario="bench/papers/mudi_batches.py:search_batches",
        seeds=seeds,
        rows=[
            _row(
                "batches tried, mean",
                (fmean(each.trials for each in found),),
                is_at_least=False,
            ),
            _row(
                "batches tried at most",
                (float(max(each.trials for each in found)),),
                25.0,
                24.0,
                is_at_least=False,
            ),
            _row(
                "iteration time over that next to the best batch, mean, x",
                (fmean(over_least),),
                is_at_least=False,
            ),
            _row("the same, worst case, x", (max(over_least),), is_at_least=False),
        ],
        notes=("Rows between the catalogue's batches are filled in.",),
    )


def _colocation(quick: bool) -> Table:
    singles, groups = (5, 2) if quick else (40, 25)
    added = [each for seed in range(singles) for each in judge(seed, tasks=4)]
    rows = [
        _row(
            "decisions for the best GPU, %",
            (100.0 * fmean(each <= SAME for each in added),),
            92.67,
            92.67,
        ),
    ]
    for is_unseen in (False, True):
        found = [
            each
            for seed in range(groups)
            if (each := compare(seed, tasks=3, is_unseen=is_unseen)) is not None
        ]
        what = "three tasks, one never profiled" if is_unseen else "three tasks"
        for name, values in (
            (OURS, [each.mudi for each in found]),
            ("bare slope", [each.bare_slope for each in found]),
            ("random", [each.by_chance for each in found]),
        ):
            is_ours = name == OURS
            rows.append(
                _row(
                    f"iteration time over the least, {what}, x",
                    (fmean(values),),
                    1.10 if is_ours else None,
                    1.10 if is_ours and not is_unseen else None,
                    policy=name,
                    is_at_least=False,
                )
            )
    return Table(
        system=SYSTEM,
        title="co-location against the exhaustive optimum, 6 GPUs",
        scenario="bench/papers/mudi_cases.py:compare",
        seeds=tuple(range(singles)),
        rows=rows,
        notes=(
            "Tasks come one after the other; the optimum for three knows them all at once, and the simulated truth.",
            "Every way to co-locate is tuned by Mudi's own device level.",
        ),
    )


def _rows(
    runs: Runs,
    figure: str,
    read: Callable[[RunResult], float],
    *,
    paper: float | None = None,
    demanded: float | None = None,
    is_at_least: bool = True,
) -> list[Row]:
    """One per policy; what the paper states, and we demand, is Mudi's."""
    return [
        _row(
            figure,
            tuple(map(read, each)),
            paper if policy == OURS else None,
            demanded if policy == OURS else None,
            policy=policy,
            is_at_least=is_at_least,
        )
        for policy, each in runs.items()
    ]


def _row(
    figure: str,
    values: tuple[float, ...],
    paper: float | None = None,
    demanded: float | None = None,
    *,
    policy: str = OURS,
    is_at_least: bool = True,
) -> Row:
    return Row(
        figure=figure,
        policy=policy,
        paper=paper,
        is_at_least=is_at_least,
        demanded=demanded,
        values=values,
        truth="synthetic",
    )


def _more_used(mine: RunResult, theirs: RunResult, rival: str) -> list[Row]:
    """How much more of the GPUs is in use than under a rival: by training, and by training and requests."""
    return [
        _row(
            f"{figure} over {rival}, %",
            (100.0 * (read(mine) / read(theirs) - 1.0),),
            paper,
            paper,
        )
        for figure, read, paper in (
            ("SM utilisation", used_percent, 37.0),
            ("SM utilisation by training", trained_percent, None),
        )
    ]
