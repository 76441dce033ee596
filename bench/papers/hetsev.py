"""HetSev's own experiments (its sections 6.1 to 6.3) as tables, read out of the runs that `bench.compare` makes.

Figures are ratios to `k8s_hpa` under the same requests, as the paper states them; `joint` has every figure that
`hetsev` has. The costs of 6.3 are there also under curves on which a T4 is half a V100 (`hetsev_plant`).
Run alone: `make bench-compare`, or `python -m bench.papers --only HetSev`.
"""

from collections.abc import Sequence
from dataclasses import replace

from app.cli.simulation.scenario_files import read_scenario
from app.simulate.report.report import SimulationReport
from app.simulate.scenario.scenario import SimulationScenario
from bench.compare import COSTS, EXPERIMENTS, SCENARIOS, Claim, Experiment, simulated
from bench.papers.hetsev_plant import with_serving_curves
from bench.papers.table import Row, Table, Truth

SYSTEM = "HetSev"
_SERVED = (
    "A T4 is 51 to 57 % of a V100 here, where PyTorch's host floor makes it 94 %: what is left of the ratios is not "
    "the choice of T4s (bench/papers/hetsev_plant.py)."
)
QUICK_S = {"hetsev_6_2": 240.0, "hetsev_6_3": 360.0}
"""Scenarios that the quick slice has, and how much of each."""
JOBS = 1
"""Runs at a time: systems run next to each other already."""


def tables(quick: bool) -> tuple[Table, ...]:
    """Its three experiments, closed and open loop; quick: the beginning of two, with one seed."""
    mine = [
        (each, name)
        for each in EXPERIMENTS
        if each.title.startswith(SYSTEM)
        for name in each.scenarios
    ]
    wanted = [(each, name) for each, name in mine if not quick or name in QUICK_S]
    found = [_table(each, name, quick=quick) for each, name in wanted]
    found += [
        _served(each, name, quick=quick)
        for each, name in wanted
        if each.claims == COSTS
    ]
    return tuple(found)


def _table(experiment: Experiment, name: str, *, quick: bool) -> Table:
    scenario = _scenario(name, quick=quick)
    report, truth = simulated(scenario, JOBS)
    found = rows(experiment.claims, report, truth=_truth(truth))
    return _table_of(
        experiment, name, scenario, found, quick=quick, note=experiment.note
    )


def _served(experiment: Experiment, name: str, *, quick: bool) -> Table:
    """The same with curves like TensorFlow Serving's."""
    scenario, catalogue = with_serving_curves(_scenario(name, quick=quick))
    report, _ = simulated(scenario, JOBS, catalogue)
    found = rows(experiment.claims, report, truth="synthetic")
    table = _table_of(experiment, name, scenario, found, quick=quick, note=_SERVED)
    return replace(table, title=f"{table.title}, TensorFlow Serving's curves")


def _scenario(name: str, *, quick: bool) -> SimulationScenario:
    scenario = read_scenario(SCENARIOS / f"{name}.yaml")
    return _beginning(scenario, QUICK_S[name]) if quick else scenario


def _table_of(
    experiment: Experiment,
    name: str,
    scenario: SimulationScenario,
    found: tuple[Row, ...],
    *,
    quick: bool,
    note: str,
) -> Table:
    notes = (" ".join(note.split()),) if note else ()
    cut = (f"Only the first {QUICK_S[name]:.0f} s, with one seed.",) if quick else ()
    return Table(
        system=SYSTEM,
        title=experiment.title.removeprefix(f"{SYSTEM} "),
        scenario=f"bench/scenarios/{name}.yaml",
        seeds=tuple(scenario.spec.seeds),
        rows=found,
        notes=notes + cut,
    )


def _beginning(scenario: SimulationScenario, duration_s: float) -> SimulationScenario:
    """Its first seconds, with its first seed."""
    spec = scenario.spec.model_copy(
        update={"duration_s": duration_s, "seeds": scenario.spec.seeds[:1]}
    )
    return scenario.model_copy(update={"spec": spec})


def rows(
    claims: Sequence[Claim], report: SimulationReport, *, truth: Truth
) -> tuple[Row, ...]:
    """A row per claim, and one of `joint` for every claim of `hetsev`, in whose place its own claim comes."""
    found: list[Row] = []
    has_joint = any(run.policy == "joint" for run in report.runs)
    for claim in claims:
        figure = f"{claim.figure.removesuffix(', joint')}, {claim.unit}" + (
            f" (over {claim.baseline})" if claim.unit == "x" else ""
        )
        found.append(_row(claim, figure, report, claim.policy, truth))
        if claim.policy == "hetsev" and has_joint:
            found.append(_row(claim, figure, report, "joint", truth))
    return tuple({(row.figure, row.policy): row for row in found}.values())


def _row(
    claim: Claim, figure: str, report: SimulationReport, policy: str, truth: Truth
) -> Row:
    is_own = policy == claim.policy
    return Row(
        figure=figure,
        policy=policy,
        paper=claim.stated if is_own and claim.is_papers else None,
        is_at_least=claim.is_at_least,
        demanded=claim.stated if is_own else None,
        values=tuple(figure for figure, _, _ in claim.values(report, policy=policy)),
        truth=truth,
    )


def _truth(provenance: str) -> Truth:
    """A row's word for where a scenario's latencies come from."""
    return "measured" if provenance == "measured" else "scaled"
