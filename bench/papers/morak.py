"""Morak's own experiments: networks on GPUs under a power cap and a latency limit, next to its baselines and `joint`.

Run: `python -m bench.papers --only Morak [--quick]`.

The baselines have one network on each GPU, all SMs, the paper's parameters (AIMD + 1, x 0.9) and batches as large as
there are; they begin at the highest clock and the largest batch. Morak is the policy `morak`, which partitions the
GPUs, under the governor `power_latency`. `joint` plans SM percents, clocks and batches once, for the rates that Morak
came to, is loaded as fully, and has the same governor, as any policy may. `bench.papers.morak_stage` says what the
worlds are.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

from bench.papers.morak_sharing import sharing_table
from bench.papers.morak_stage import (
    PERIODS,
    SETTLING,
    Course,
    Gpu,
    Period,
    Setting,
    Stage,
    exclusive,
    planned,
    play,
    plenty_rps,
    stages,
)
from bench.papers.table import Row, Table
from solvers.governors.power_latency import FAILING_PERIODS
from solvers.papers.morak.parameters import MorakParameters
from solvers.types.parameters import AS_BY_DEFAULT

SEEDS = (1, 2, 3)
TIGHT = Setting(cap_w=150.0, latency_ms=100.0)
LOOSE = Setting(cap_w=150.0, latency_ms=300.0)
BASELINES = ("clipper_latency", "clipper_power", "dfs", "batch_dvfs")
GOVERNOR_ALONE = "governor alone"
"""Morak's governor over GPUs that are not shared: what is left of it without its partition."""
BY_KNEES = "morak by knees"
"""Its partition as printed: in proportion to the knees alone."""
PAPER_GAINS = {
    "clipper_latency": 130.9,
    "clipper_power": 110.3,
    "dfs": 67.7,
    "batch_dvfs": 70.5,
}
"""In percent, in the paper's own order; it does not say outright which is whose."""
MIN_GAIN = 67.7
PAPER_ENERGY_GAINS = (22.2, 50.2)
CAPS_W = (100.0, 125.0, 150.0, 175.0, 200.0)
LATENCIES_MS = (25.0, 50.0, 100.0, 200.0)
LOOP_S = 5
"""The control loop's period: so long a request waits for the next plan at most."""
SCENARIO = "bench.papers.morak_stage.stages"

_KEPT = "throughput within both limits, rps"
_ALL = "throughput of all requests, rps"
_OVER = "periods above the cap after 20, %"
_WHY_NOT_ALL = (
    "A request counts as within both limits when its batch kept the latency limit on a GPU that kept the cap: "
    "clipper_latency ignores the cap, clipper_power saws around it, dfs and batch_dvfs ignore the latency."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one policy came to, by seed, after it had time to settle."""

    rate_rps: tuple[float, ...]
    kept_rps: tuple[float, ...]
    kept_by_network: tuple[Mapping[str, float], ...]
    over_percent: tuple[float, ...]
    """Periods above the cap, of all GPUs'."""
    joule_per_request: tuple[float, ...]
    joule_per_work: tuple[float, ...]
    """Per second of work of a whole GPU, so that networks of all sizes count alike."""
    max_w: tuple[float, ...]
    batch_ms: tuple[float, ...]
    """Mean of the longest batch of each GPU."""


def tables(quick: bool) -> tuple[Table, ...]:
    """The paper's figures 6, 7 and 8 and how fast it settles; `quick`: two of the boards, one seed, no sweeps."""
    chosen, seeds = (
        ((stages()[0], stages()[-1]), SEEDS[:1]) if quick else (stages(), SEEDS)
    )
    found = []
    for stage in chosen:
        found += [
            _throughput(stage, seeds),
            _energy(stage, seeds),
            _settling(stage, seeds),
        ]
    found.append(sharing_table())
    if not quick:
        found += [_cap_sweep(stages()[0], seeds), _latency_sweep(stages()[0], seeds)]
    return tuple(found)


def _throughput(stage: Stage, seeds: tuple[int, ...]) -> Table:
    results = {
        name: result(stage, name, TIGHT, seeds)
        for name in (*BASELINES, GOVERNOR_ALONE, "joint", BY_KNEES, "morak")
    }
    morak = results["morak"]
    rows = [_row(stage, _KEPT, name, each.kept_rps) for name, each in results.items()]
    rows += [_row(stage, _ALL, name, each.rate_rps) for name, each in results.items()]
    rows += [
        _row(
            stage,
            f"throughput of all requests over {name}, %",
            "morak",
            gains(morak.rate_rps, results[name].rate_rps),
            paper=PAPER_GAINS[name],
        )
        for name in BASELINES
    ]
    best = [
        max(values)
        for values in zip(*(results[name].kept_rps for name in BASELINES), strict=True)
    ]
    rows += [
        _row(
            stage,
            "throughput within both limits over the best baseline, %",
            name,
            gains(results[name].kept_rps, best),
            paper=MIN_GAIN,
            demanded=MIN_GAIN if name == "morak" else None,
        )
        for name in (BY_KNEES, "morak")
    ]
    rows += [
        _row(
            stage,
            f"the same of {network}, %",
            "morak",
            gains(*_of_network(results, network)),
        )
        for network in stage.networks
    ]
    for name, each in results.items():
        demanded = 0.0 if name == "morak" else None
        values = each.over_percent
        rows.append(
            _row(
                stage,
                _OVER,
                name,
                values,
                paper=demanded,
                is_at_least=False,
                demanded=demanded,
            )
        )
    return _table(stage, "150 W and 100 ms (figure 6)", seeds, rows, _WHY_NOT_ALL)


def _of_network(
    results: Mapping[str, Result], network: str
) -> tuple[list[float], list[float]]:
    """Morak's throughput of one network, and that of the baseline that is best at it."""
    mine = [each.get(network, 0.0) for each in results["morak"].kept_by_network]
    others = [
        [each.get(network, 0.0) for each in results[name].kept_by_network]
        for name in BASELINES
    ]
    return mine, [max(values) for values in zip(*others, strict=True)]


def _energy(stage: Stage, seeds: tuple[int, ...]) -> Table:
    results = {
        name: result(stage, name, LOOSE, seeds)
        for name in (*BASELINES, GOVERNOR_ALONE, BY_KNEES, "morak")
    }
    rows = [
        _row(
            stage,
            "energy per request, J",
            name,
            each.joule_per_request,
            is_at_least=False,
        )
        for name, each in results.items()
    ]
    best = [
        min(values)
        for values in zip(
            *(results[name].joule_per_request for name in BASELINES), strict=True
        )
    ]
    rows += [
        _row(
            stage,
            "energy per request below the best baseline, %",
            name,
            tuple(
                100.0 * (1.0 - own / other)
                for own, other in zip(
                    results[name].joule_per_request, best, strict=True
                )
            ),
            paper=PAPER_ENERGY_GAINS[0],
            demanded=PAPER_ENERGY_GAINS[0] if name == "morak" else None,
        )
        for name in (BY_KNEES, "morak")
    ]
    rows += [
        _row(
            stage,
            "energy per second of a whole GPU's work, J",
            name,
            each.joule_per_work,
            is_at_least=False,
        )
        for name, each in results.items()
    ]
    note = "Watts of all GPUs over requests of all networks, idle watts included; the paper states 22.2 to 50.2 %."
    return _table(stage, "150 W and 300 ms: energy (figure 8)", seeds, rows, note)


def _settling(stage: Stage, seeds: tuple[int, ...]) -> Table:
    """Periods after a start, and after each change of a limit, until both limits are kept for good."""
    lower_cap, tighter = (
        Setting(cap_w=120.0, latency_ms=100.0),
        Setting(cap_w=150.0, latency_ms=60.0),
    )
    courses = {
        "start": (TIGHT, TIGHT),
        "cap 150 to 120 W": (TIGHT, lower_cap),
        "cap 120 to 150 W": (lower_cap, TIGHT),
        "limit 100 to 60 ms": (TIGHT, tighter),
        "limit 60 to 100 ms": (tighter, TIGHT),
    }
    rows, again = [], []
    for figure, (first, then) in courses.items():
        found = [
            _settled(stage, first, then, seed, is_start=figure == "start")
            for seed in seeds
        ]
        again += [figure] if any(needs for _, needs in found) else []
        rows.append(
            _row(
                stage,
                f"periods until both limits are kept for good: {figure}",
                "morak",
                tuple((float(periods) for periods, _ in found)),
                is_at_least=False,
                demanded=float(SETTLING),
            )
        )
    notes = (
        f"After {' and '.join(again)} no clock and batch keeps both limits with the SM percents as they were: the "
        f"governor asks, and {LOOP_S} seconds later, the loop's period, the next plan partitions again."
    )
    title = "settling after a start and after changes of the limits"
    return _table(stage, title, seeds, rows, *([notes] if again else []))


def _settled(
    stage: Stage, first: Setting, then: Setting, seed: int, *, is_start: bool
) -> tuple[int, bool]:
    """Periods from the start or the change on; whether it took another partition."""
    gpus = gpus_of(stage, "morak", first)
    course = play(
        stage, gpus, "power_latency", [first] * PERIODS + [then] * PERIODS, seed
    )
    begin = 0 if is_start else PERIODS
    periods = settled_after([gpu[begin : begin + PERIODS] for gpu in course])
    if periods < PERIODS:
        return periods, False
    anew = play(
        stage, gpus_of(stage, "morak", then), "power_latency", [then] * PERIODS, seed
    )
    return FAILING_PERIODS + LOOP_S + settled_after(anew), True


def _cap_sweep(stage: Stage, seeds: tuple[int, ...]) -> Table:
    rows = []
    for cap_w in CAPS_W:
        for name in (*BASELINES, "morak"):
            found = result(
                stage, name, Setting(cap_w=cap_w, latency_ms=TIGHT.latency_ms), seeds
            )
            demanded = cap_w if name == "morak" else None
            figure = f"most power at a cap of {cap_w:g} W, W"
            rows.append(_upper(figure, name, found.max_w, demanded, stage))
            figure = f"throughput within both limits at {cap_w:g} W, rps"
            rows.append(_row(stage, figure, name, found.kept_rps))
    return _table(stage, "caps from 100 to 200 W at 100 ms (figure 7a)", seeds, rows)


def _latency_sweep(stage: Stage, seeds: tuple[int, ...]) -> Table:
    rows = []
    for latency_ms in LATENCIES_MS:
        for name in (*BASELINES, "morak"):
            found = result(
                stage, name, Setting(cap_w=TIGHT.cap_w, latency_ms=latency_ms), seeds
            )
            demanded = latency_ms if name == "morak" else None
            rows.append(
                _upper(
                    f"time of a batch at a limit of {latency_ms:g} ms, ms",
                    name,
                    found.batch_ms,
                    demanded,
                    stage,
                )
            )
            figure = f"throughput within both limits at {latency_ms:g} ms, rps"
            rows.append(_row(stage, figure, name, found.kept_rps))
    return _table(stage, "latency limits at 150 W (figure 7b)", seeds, rows)


def _row(
    stage: Stage,
    figure: str,
    policy: str,
    values: tuple[float, ...],
    *,
    paper: float | None = None,
    demanded: float | None = None,
    is_at_least: bool = True,
) -> Row:
    return Row(
        figure=figure,
        policy=policy,
        paper=paper,
        is_at_least=is_at_least,
        demanded=demanded,
        values=values,
        truth=stage.truth,
    )


def _upper(
    figure: str,
    name: str,
    values: tuple[float, ...],
    demanded: float | None,
    stage: Stage,
) -> Row:
    return _row(stage, figure, name, values, is_at_least=False, demanded=demanded)


def _table(
    stage: Stage, title: str, seeds: tuple[int, ...], rows: Sequence[Row], *notes: str
) -> Table:
    return Table(
        system="Morak",
        title=f"{stage.name}: {title}",
        scenario=SCENARIO,
        seeds=seeds,
        rows=tuple(rows),
        notes=(stage.note, *notes),
    )


@cache
def gpus_of(stage: Stage, name: str, setting: Setting) -> tuple[Gpu, ...]:
    """The GPUs of a governor, alone with a network each, or of a policy."""
    if name in (*BASELINES, GOVERNOR_ALONE):
        return tuple(exclusive(stage))
    if name in ("morak", BY_KNEES):
        by_knees = MorakParameters(division="by knees")
        return tuple(
            planned(
                stage,
                "morak",
                setting,
                plenty_rps(stage),
                by_knees if name == BY_KNEES else AS_BY_DEFAULT,
            )
        )
    return tuple(planned(stage, name, setting, _rates_of_morak(stage, setting)))


def _rates_of_morak(stage: Stage, setting: Setting) -> Mapping[str, float]:
    course = play(
        stage,
        gpus_of(stage, "morak", setting),
        "power_latency",
        [setting] * PERIODS,
        SEEDS[0],
    )
    settled = [period for gpu in course for period in gpu[SETTLING:]]
    seconds = PERIODS - SETTLING
    return {
        name: sum(each.rates_rps.get(name, 0.0) for each in settled) / seconds
        for name in stage.networks
    }


def result(stage: Stage, name: str, setting: Setting, seeds: tuple[int, ...]) -> Result:
    """What a baseline, Morak or `joint` comes to under fixed limits."""
    governor = name if name in BASELINES else "power_latency"
    gpus = gpus_of(stage, name, setting)
    return measured(
        stage,
        [play(stage, gpus, governor, [setting] * PERIODS, seed) for seed in seeds],
    )


def measured(stage: Stage, courses: Sequence[Course]) -> Result:
    """The figures of one course per seed, from period SETTLING on."""
    settled = [[gpu[SETTLING:] for gpu in course] for course in courses]
    flat = [[period for gpu in course for period in gpu] for course in settled]
    seconds = [len(course[0]) for course in settled]
    return Result(
        rate_rps=tuple(
            sum(each.rate_rps for each in of) / s
            for of, s in zip(flat, seconds, strict=True)
        ),
        kept_rps=tuple(
            sum(each.kept_rps for each in of) / s
            for of, s in zip(flat, seconds, strict=True)
        ),
        kept_by_network=tuple(
            _by_network(of, s) for of, s in zip(flat, seconds, strict=True)
        ),
        over_percent=tuple(
            100.0 * fmean(not each.keeps_cap for each in of) for of in flat
        ),
        joule_per_request=tuple(
            sum(each.power_w for each in of) / sum(each.rate_rps for each in of)
            for of in flat
        ),
        joule_per_work=tuple(
            sum(each.power_w for each in of) / _work_s(stage, of) for of in flat
        ),
        max_w=tuple(max(each.power_w for each in of) for of in flat),
        batch_ms=tuple(fmean(each.longest_ms for each in of) for of in flat),
    )


def _work_s(stage: Stage, periods: Sequence[Period]) -> float:
    """Seconds that whole GPUs at the highest clock and the largest batch would take for the requests of all periods."""
    whole_rps = {
        name: rate_rps / len(stage.networks)
        for name, rate_rps in plenty_rps(stage).items()
    }
    return sum(
        rate_rps / whole_rps[name]
        for each in periods
        for name, rate_rps in each.rates_rps.items()
    )


def _by_network(periods: Sequence[Period], seconds: int) -> Mapping[str, float]:
    total: defaultdict[str, float] = defaultdict(float)
    for each in periods:
        for name, rate_rps in each.kept.items():
            total[name] += rate_rps / seconds
    return total


def gains(mine: Sequence[float], others: Sequence[float]) -> tuple[float, ...]:
    """By how many percent more, seed by seed; a hundredfold where the other has nothing."""
    return tuple(
        100.0 * (own / other - 1.0) if other > 0.0 else 10_000.0
        for own, other in zip(mine, others, strict=True)
    )


def settled_after(course: Course) -> int:
    """The number of the first period from which on every GPU keeps both limits; as many as there are when never."""
    last = -1
    for gpu in course:
        last = max(
            [last, *(number for number, period in enumerate(gpu) if not period.keeps)]
        )
    return last + 1
