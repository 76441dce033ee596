"""InSS's own experiments: throughput within the SLOs, violations, prediction error and decision time.

Run: `python -m bench.papers --only InSS [--quick]`.

Every policy goes through the production loop on the same requests. Throughput at saturation is what is served in time
at the highest load, in steps, at which fewer than 1 % of all requests are late or dropped: one mix of constant rates
per seed, drawn from the ranges of the published program. What differs from the paper stands in the tables' notes.
"""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from statistics import fmean, median

import numpy as np

from bench.papers.inss_plant import plant_table
from bench.papers.inss_prediction import errors_percent
from bench.papers.inss_stage import (
    EIGHT,
    PROPOSALS,
    PROPOSALS_NOTE,
    SIX,
    Played,
    Setup,
    play,
    problem,
    shipped_actor,
)
from bench.papers.table import Row, Table
from solvers.greedy.configure import planning_clock_mhz
from solvers.papers.inss.training.actor import (
    Situation,
    actor_from_bytes,
    propose,
    setting_of,
)
from solvers.papers.inss.training.world import ProvisioningWorld
from solvers.policies.registry import policy
from solvers.types.outcome import Budget
from solvers.types.state import Json, Observed

SEEDS = (1, 2, 3)
PLANT_SEEDS = (1, 2, 3, 4, 5)
SWING_SEEDS = (4, 5, 6, 7, 8, 9)
"""Of the rates that jump: on the others the wait of InSS' search was chosen."""
PAPER_GAINS = {"gpulets": 28.1, "gslice": 47.7, "igniter": 189.7}
RIVALS = (*PAPER_GAINS, "gpulets_bda", "inss_ni", "inss_1e", "joint", *PROPOSALS)
LOADS = (2.4, 2.0, 1.6, 1.3, 1.0, 0.7, 0.4)
"""Tried from the highest on; then, STEP by STEP, those between the first within the SLOs and the one before it."""
STEP = 0.1
SWING_LOAD = 0.8
PROCESSES = min(2, os.cpu_count() or 1)
"""Of a full run: this system takes longest."""
SCENARIO = "bench.papers.inss_stage.scenario"
_BOARDS = (
    "RTX 2060 and 2060 Super are scaled from V100 curves by published ratios; "
    "MobileNetV2 stands in for EfficientNet."
)
_MIXES = "The paper prints no rates: each seed draws constant ones from the published program's ranges."
_WHY_NOT = (
    "A baseline that keeps the SLOs at no load is compared by what it serves in time at InSS's load. iGniter's gain is "
    "far from the paper's: here it sizes replicas from the same operating points, and scales to several of them."
)
_MEMORY = (
    "Replicas take 1.7 to 3.5 GB here (PyTorch's runtime is most of it) and boards have 6 and 8, so that three rarely "
    "fit on one; the paper's networks take 1.0 to 1.9 GB, which leaves room for more sharing than gpu-lets' two."
)


def tables(quick: bool) -> tuple[Table, ...]:
    """The paper's figures 15 to 23, tables 2 and 3, and the time of decisions; `quick`: one seed, fewer loads."""
    seeds = SEEDS[:1] if quick else SEEDS
    found = [
        _six(seeds, quick=quick),
        _swinging(SWING_SEEDS[:1] if quick else SWING_SEEDS, quick=quick),
        _errors(quick=quick),
        _times(quick=quick),
    ]
    found.append(plant_table((1,) if quick else PLANT_SEEDS, quick=quick))
    if not quick:
        found.insert(2, _eight(seeds))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """For which loads a policy is tried, and how many searches go on at a time."""

    seeds: tuple[int, ...]
    loads: tuple[float, ...] = LOADS
    is_fine: bool = True
    """Whether loads between two of them are tried, too."""
    processes: int = 1


def saturations(
    setup: Setup, names: Sequence[str], search: Search
) -> dict[str, tuple[Played, ...]]:
    """By policy and seed, the highest load that was found within the SLOs; where none is, the lowest load."""
    asked = [
        (replace(setup, mix=seed), name, seed, search)
        for name in names
        for seed in search.seeds
    ]
    if search.processes == 1:
        found = [_saturated(*each) for each in asked]
    else:
        with ProcessPoolExecutor(max_workers=search.processes) as pool:
            found = list(pool.map(_saturated, *zip(*asked, strict=True)))
    per_policy = len(search.seeds)
    return {
        name: tuple(found[at * per_policy : (at + 1) * per_policy])
        for at, name in enumerate(names)
    }


def _saturated(setup: Setup, name: str, seed: int, search: Search) -> Played:
    return highest(lambda load: play(setup, (name,), load, (seed,))[0], search)


def highest(played_at: Callable[[float], Played], search: Search) -> Played:
    """The highest load within the SLOs, from above; where none is, the lowest one with nothing served."""
    above = None
    for load in search.loads:
        played = played_at(load)
        if played.keeps_slos:
            return (
                _finer(played_at, above, played)
                if search.is_fine and above is not None
                else played
            )
        above = load
    return replace(played, goodput_rps=0.0, load=0.0)


def _finer(played_at: Callable[[float], Played], above: float, best: Played) -> Played:
    """The highest load within the SLOs of those between the best and the one above it, which is not."""
    load = round(above - STEP, 6)
    while load > best.load + STEP / 2.0:
        played = played_at(load)
        if played.keeps_slos:
            return played
        load = round(load - STEP, 6)
    return best


def _six(seeds: Sequence[int], *, quick: bool) -> Table:
    search = Search(
        seeds=tuple(seeds),
        # The highest ones take most of the time.
        loads=LOADS[2:] if quick else LOADS,
        is_fine=not quick,
        processes=1 if quick else PROCESSES,
    )
    rivals = (*PAPER_GAINS, "joint") if quick else RIVALS
    found = saturations(Setup(services=SIX), ("inss", *rivals), search)
    rows = [_throughput_row(name, played) for name, played in found.items()]
    for name in PAPER_GAINS:
        if not any(one.goodput_rps for one in found[name]):
            same = [
                play(
                    replace(Setup(services=SIX), mix=one.seed),
                    (name,),
                    one.load,
                    (one.seed,),
                )
                for one in found["inss"]
            ]
            found[name] = tuple(one for played in same for one in played)
    for name, paper in PAPER_GAINS.items():
        rows.append(
            _gain_row(
                f"gain in throughput over {name}, %",
                found["inss"],
                found[name],
                paper,
                demanded=paper,
            )
        )
    if "gpulets_bda" in found:
        rows.append(
            replace(
                _gain_row(
                    "gain of gpulets' with InSS's batches, %",
                    found["gpulets_bda"],
                    found["gpulets"],
                    11.0,
                ),
                policy="gpulets_bda",
            )
        )
    rows += [
        Row(
            figure="late or dropped at saturation, %",
            policy=name,
            paper={"inss": 1.0, "gpulets": 4.4, "gslice": 4.5, "igniter": 3.8}.get(
                name
            ),
            is_at_least=False,
            demanded=1.0 if name == "inss" else None,
            values=tuple(one.late_percent for one in found[name]),
            truth="scaled",
        )
        for name in found
    ]
    return _table(
        "six networks on 4 GPUs, highest load with < 1 % late",
        seeds,
        rows,
        (_BOARDS, _MIXES, _MEMORY, _WHY_NOT, PROPOSALS_NOTE),
    )


def _eight(seeds: Sequence[int]) -> Table:
    rows = []
    for gpus, supers in ((4, 2), (5, 3)):
        setup = Setup(services=EIGHT, supers=supers)
        search = Search(seeds=tuple(seeds), loads=LOADS[2:], processes=PROCESSES)
        for name, played in saturations(
            setup, ("inss", *PROPOSALS, *PAPER_GAINS), search
        ).items():
            row = _throughput_row(name, played)
            rows.append(replace(row, figure=f"throughput on {gpus} GPUs, rps"))
    note = "On 5 GPUs no actor is trained: a local search provisions, as for any other fleet."
    return _table(
        "eight networks on 4 and 5 GPUs", seeds, rows, (_BOARDS, _MIXES, note)
    )


def _swinging(seeds: Sequence[int], *, quick: bool) -> Table:
    """The same requests for all, at rates that jump."""
    setup = Setup(services=SIX, mix=None, counted_s=120.0 if quick else 600.0)
    rows = []
    for name in ("inss", *PAPER_GAINS) if quick else ("inss", *RIVALS):
        played = play(
            setup, (name,), SWING_LOAD, seeds, processes=1 if quick else PROCESSES
        )
        late = tuple(one.late_percent for one in played)
        figures = {
            "throughput in time, rps": tuple(one.goodput_rps for one in played),
            "late or dropped, %": late,
            "the same of the worst seed, %": (max(late),),
        }
        rows += [
            Row(
                figure=figure,
                policy=name,
                paper=None,
                is_at_least=figure.endswith("rps"),
                values=values,
                truth="scaled",
            )
            for figure, values in figures.items()
        ]
    note = "A jump counts as late until the forecast has seen it and replicas have started."
    title = f"rates that jump every minute, load {SWING_LOAD:g}"
    return _table(title, seeds, rows, (_BOARDS, note, PROPOSALS_NOTE))


def _errors(*, quick: bool) -> Table:
    rows = [
        Row(
            figure=f"{figure}, %",
            policy="inss",
            paper=paper,
            is_at_least=False,
            demanded=4.0,
            values=(value,),
            truth="measured",
        )
        for figure, paper, value in errors_percent(quick=quick)
    ]
    note = (
        "Four of the 28 printed rows are left out: no row of that network is alone. "
        "In sample, as 28 rows are too few."
    )
    return _table("prediction error of GPU execution latency", (0,), rows, (note,))


def _times(*, quick: bool) -> Table:
    times = {
        name: decision_ms(name, repeats=5 if quick else 40)
        for name in ("inss", *PAPER_GAINS)
    }
    most = min(value for name, value in times.items() if name in ("gpulets", "gslice"))
    rows = [
        Row(
            figure="time of a decision when rates change, ms",
            policy=name,
            paper=None,
            is_at_least=False,
            demanded=most if name == "inss" else None,
            values=(value,),
            truth="scaled",
        )
        for name, value in times.items()
    ]
    rows.append(
        Row(
            figure="time of the actor's inference, ms",
            policy="inss",
            paper=None,
            is_at_least=False,
            demanded=5.0,
            values=(inference_ms(repeats=5 if quick else 40),),
            truth="scaled",
        )
    )
    return _table(
        "time of decisions, eight networks on 4 GPUs",
        (0,),
        rows,
        ("Medians, one process, under other load.",),
    )


def decision_ms(name: str, *, repeats: int) -> float:
    """Median time of a plan after rates have changed by some per cent, from the plan before."""
    observed = Observed(at_s=0.0, actor=shipped_actor())
    asked = problem(Setup(services=EIGHT, mix=1), 0.7)
    memory: Json = None
    plan, _, memory = policy(name).make_plan(asked, observed, memory, Budget())
    draw, found = np.random.default_rng(0), []
    for _ in range(repeats):
        services = tuple(
            replace(one, arrival_rate_rps=one.arrival_rate_rps * draw.uniform(0.9, 1.1))
            for one in asked.services
        )
        changed = replace(asked, services=services, current=plan)
        begun = time.perf_counter()
        plan, _, memory = policy(name).make_plan(changed, observed, memory, Budget())
        found.append(1000.0 * (time.perf_counter() - begun))
    return median(found)


def inference_ms(*, repeats: int) -> float:
    """Median time in which the shipped actor proposes one provision for eight services."""
    asked = problem(Setup(services=EIGHT, mix=1), 0.7)
    actor = actor_from_bytes(shipped_actor())
    clocks = [planning_clock_mhz(asked, gpu_type) for gpu_type in asked.gpu_types]
    world = ProvisioningWorld(asked, setting_of(actor, asked), clocks_mhz=clocks)
    rates = np.array(
        [asked.service(name).arrival_rate_rps for name in world.setting.services]
    )
    situation = Situation(
        rates_rps=rates, queued=0.0 * rates, used_mib=np.zeros(len(world.setting.gpus))
    )
    found = []
    for seed in range(repeats):
        begun = time.perf_counter()
        propose(actor, world, situation, rounds=1, seed=seed)
        found.append(1000.0 * (time.perf_counter() - begun))
    return median(found)


def _throughput_row(name: str, played: Sequence[Played]) -> Row:
    values = tuple(one.goodput_rps for one in played)
    return Row(
        figure="throughput, rps", policy=name, paper=None, values=values, truth="scaled"
    )


def _gain_row(
    figure: str,
    ours: Sequence[Played],
    theirs: Sequence[Played],
    paper: float,
    *,
    demanded: float | None = None,
) -> Row:
    """Of the means over the seeds."""
    mine, rival = (
        fmean(one.goodput_rps for one in ours),
        fmean(one.goodput_rps for one in theirs),
    )
    gain = 100.0 * (mine / rival - 1.0) if rival > 0.0 else float("inf")
    return Row(
        figure=figure,
        policy="inss",
        paper=paper,
        demanded=demanded,
        values=(gain,),
        truth="scaled",
    )


def _table(
    title: str, seeds: Sequence[int], rows: Sequence[Row], notes: Sequence[str]
) -> Table:
    return Table(
        system="InSS",
        title=title,
        scenario=SCENARIO,
        seeds=tuple(seeds),
        rows=tuple(rows),
        notes=tuple(notes),
    )
