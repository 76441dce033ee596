"""Cards: what every policy is, where it comes from, what it needs and when to choose it, as people are told.

A policy's docstring says how it decides; its card says the same in a few lines that can be laid beside another's. A
test keeps the cards complete: whoever registers a policy writes its card.
"""

from dataclasses import dataclass
from typing import Literal

from solvers.policies.registry import policies
from solvers.types.errors import UnknownPolicy

Decides = Literal[
    "GPU types", "replicas", "placement", "SM percent", "batch", "clock", "tasks"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One policy, described."""

    name: str
    """As it is registered."""
    title: str
    """What it does, in at most 45 characters."""
    source: str
    """Paper, venue and year; `ours`."""
    techniques: tuple[str, ...]
    """Modules below `solvers` that do its work."""
    decides: tuple[Decides, ...]
    promises: bool
    """Whether its plans keep the promise of a percentile; else the loop of a real cluster may refuse them."""
    needs: tuple[str, ...] = ()
    """What must be there beside what ships: extras, trained weights."""
    limits: tuple[str, ...]
    """What it does not know or cannot do."""
    good_for: str
    """When to choose it."""


_ALL: tuple[Decides, ...] = (
    "GPU types",
    "replicas",
    "placement",
    "SM percent",
    "batch",
    "clock",
)

_OURS = (
    Card(
        name="joint",
        title="everything in one program, with a bound",
        source="ours",
        techniques=("joint", "joint.kernels", "joint.replan", "joint.heuristics"),
        decides=_ALL,
        promises=True,
        limits=(
            "On large fleets its plans have a proven gap of some per cent.",
            "Which of several good plans it finds in its time depends on the seed.",
        ),
        good_for="the default: the least cost that keeps every SLO, under limits on what moves",
    ),
)

_HETSEV = "HetSev, Future Internet 2023"
_OF_HETSEV = (
    Card(
        name="hetsev",
        title="counts per GPU type, then SM %, then places",
        source=f"{_HETSEV}, sections 4.1 and 4.2",
        techniques=(
            "autoscale",
            "sharing",
            "placement",
            "papers.hetsev.fair_queues",
            "greedy.configure",
        ),
        decides=_ALL,
        promises=True,
        limits=(
            "It proves its steps, not their composition: it misses what deciding all at once would gain.",
            "No two replicas of a network share a GPU.",
        ),
        good_for="plans whose every step can be read and exported; changes as small as the counts ask",
    ),
    Card(
        name="hetsev_greedy",
        title="one replica more or less per trigger",
        source=f"{_HETSEV}, section 4.1",
        techniques=("autoscale.greedy", "greedy.configure", "greedy.scaling_rules"),
        decides=_ALL,
        promises=True,
        limits=(
            "A service is scaled by its own trigger; others' needs count by priority only.",
            "What runs is never swapped for something cheaper.",
        ),
        good_for="fleets where replicas must hardly move, and where no solver may be used",
    ),
)

_MORAK = (
    Card(
        name="morak",
        title="knee points fill GPUs and split them",
        source="Liu et al., Morak, IEEE MASS 2023, sections III-C and V-C",
        techniques=("papers.morak.knee_partition", "baselines.type_by_type"),
        decides=_ALL,
        promises=True,
        limits=(
            "Every GPU is given away in full, however little is asked of it.",
            "It knows no price of a move; priority counts only where something stays unserved.",
            "What it needs from the governor is throughput: without one its clock stays where the cap puts it.",
        ),
        good_for="throughput under a power cap, together with the governor power_latency",
    ),
)

_BASELINES = (
    Card(
        name="k8s_hpa",
        title="Kubernetes' autoscaler on whole GPUs",
        source="Kubernetes' HorizontalPodAutoscaler",
        techniques=("greedy.scaling_rules", "laws.colocation"),
        decides=("GPU types", "replicas", "batch", "clock"),
        promises=True,
        limits=(
            "GPUs are never shared.",
            "The GPU type of a new replica is drawn by seed.",
        ),
        good_for="a baseline: what a cluster without Plimsoll would do",
    ),
    Card(
        name="gpulets",
        title="at most two shares per GPU, knee first",
        source="Choi et al., USENIX ATC 2022, section 4",
        techniques=("baselines.half_slo", "baselines.type_by_type", "laws.colocation"),
        decides=_ALL,
        promises=False,
        limits=(
            "It knows no queue: a replica is taken to serve what it executes within half its SLO.",
            "Never three services on a GPU; no priority, no price of a move.",
        ),
        good_for="a baseline that shares GPUs in space and knows that neighbours hurt; in simulations",
    ),
    Card(
        name="gslice",
        title="SM % that tunes itself by measured latency",
        source="Dhakal et al., ACM SoCC 2020",
        techniques=("baselines.half_slo", "baselines.gslice_tuning", "greedy.arrange"),
        decides=_ALL,
        promises=False,
        limits=(
            "It finds out by missing SLOs, and only after the fact.",
            "Neighbours that come are a surprise; priority only decides who is placed first.",
        ),
        good_for="a baseline that needs no predictions beyond the profile alone; in simulations",
    ),
    Card(
        name="igniter",
        title="extra SM % for what neighbours take",
        source="Xu et al., IEEE TPDS 2023, theorem 1 and algorithms 1 and 2",
        techniques=("baselines.half_slo", "baselines.type_by_type", "laws.colocation"),
        decides=_ALL,
        promises=False,
        limits=(
            "It knows no queue: a replica is taken to serve what it executes within half its SLO.",
            "No priority, no price of a move; a service that finds no room stays unserved as a whole.",
        ),
        good_for="a baseline that knows interference; in simulations",
    ),
)

_OF_MUDI = (
    Card(
        name="mudi",
        title="one service per GPU, training beside it",
        source="Chen et al., EuroSys 2025",
        techniques=(
            "baselines.one_per_gpu",
            "papers.mudi.fill",
            "papers.mudi.smallest_slope",
            "papers.mudi.gp_lcb",
        ),
        decides=(*_ALL, "tasks"),
        promises=True,
        limits=(
            "Services never share a GPU with each other: small ones cost a GPU each.",
            "Batches and shares are tuned only on GPUs with tasks; deadlines of tasks buy no idle GPU.",
        ),
        good_for="a fleet that is there anyway, and is to train beside its services as fast as their SLOs allow",
    ),
    Card(
        name="muxflow",
        title="matches tasks with the idle SMs of services",
        source="Zhao et al., arXiv 2303.13803",
        techniques=(
            "baselines.one_per_gpu",
            "baselines.half_slo",
            "baselines.leftover_fill",
        ),
        decides=("GPU types", "replicas", "SM percent", "batch", "tasks"),
        promises=False,
        limits=(
            "Shares follow the average load: what is idle on average may be missing in a burst.",
            "One task per GPU; services never share a GPU with each other.",
        ),
        good_for="a baseline for training beside services; in simulations",
    ),
)

_INSS = "InSS (published in IEEE TPDS 2024)"
_OF_INSS = (
    Card(
        name="inss",
        title="batches at once, shares by a trained actor",
        source=f"{_INSS}, sections 5.1 to 5.5",
        techniques=(
            "papers.inss.batch_decision",
            "papers.inss.actor",
            "papers.inss.local_search",
            "papers.inss.provisioning",
        ),
        decides=("GPU types", "replicas", "placement", "SM percent", "batch"),
        promises=True,
        limits=(
            "It minimises no cost and uses the whole fleet.",
            "An actor is valid for one fleet and its services; elsewhere a search provisions, more slowly.",
            "It knows no clocks but the highest, and no price of a move.",
        ),
        good_for="the most throughput of a fixed fleet whose loads swing: batches change at once, replicas stay",
    ),
    Card(
        name="inss_1e",
        title="inss with one GPU for each network",
        source=f"{_INSS}, section 3.3, constraint 1e",
        techniques=(
            "papers.inss.batch_decision",
            "papers.inss.actor",
            "papers.inss.local_search",
            "papers.inss.provisioning",
        ),
        decides=("GPU types", "placement", "SM percent", "batch"),
        promises=True,
        limits=(
            "A service that one GPU cannot carry stays unserved in part; what limits inss limits it, too.",
        ),
        good_for="comparisons with the paper, whose formulation has this constraint",
    ),
    Card(
        name="inss_ni",
        title="inss that knows no interference",
        source=f"{_INSS}, section 6.3, InSS-ni",
        techniques=(
            "papers.inss.batch_decision",
            "papers.inss.actor",
            "papers.inss.local_search",
            "papers.inss.provisioning",
        ),
        decides=("GPU types", "replicas", "placement", "SM percent", "batch"),
        promises=False,
        limits=(
            "It believes that neighbours cost nothing, and plans shared GPUs too full.",
        ),
        good_for="a baseline that shows what knowing interference is worth; in simulations",
    ),
    Card(
        name="gpulets_bda",
        title="gpulets with the batches of inss",
        source=f"{_INSS}, section 6.3, BDA-Gpulet",
        techniques=(
            "papers.inss.batch_decision",
            "baselines.half_slo",
            "baselines.type_by_type",
        ),
        decides=_ALL,
        promises=False,
        limits=(
            "Shares are those of gpulets, which knows no queue; what then is beyond its capacity stays unserved.",
        ),
        good_for="a baseline that shows what batches alone are worth; in simulations",
    ),
)

_OLTUNES = (
    Card(
        name="oltunes",
        title="tuning score and affinity; dispatches jobs",
        source="Kim, Ha, Kim, OLTunes, Cluster Computing 2025",
        techniques=("papers.oltunes.affinity", "papers.oltunes.tuning_score"),
        decides=(*_ALL, "tasks"),
        promises=True,
        limits=(
            "It looks at one service at a time and never moves what runs: more GPUs than joint.",
            "Affinity as printed lets few services share while the fleet is not full.",
        ),
        good_for="offline jobs with deadlines on a fleet that is there anyway, beside some services",
    ),
)


def card(name: str) -> Card:
    """The card of the policy of that name. Raises UnknownPolicy, which lists the names that exist."""
    if name not in _CARDS:
        raise UnknownPolicy(
            f"no policy is called {name!r}; there are {', '.join(policies())}"
        )
    return _CARDS[name]


_CARDS = {
    card.name: card
    for card in (
        *_OF_INSS,
        *_OF_MUDI,
        *_OLTUNES,
        *_OURS,
        *_OF_HETSEV,
        *_MORAK,
        *_BASELINES,
    )
}


def cards() -> tuple[Card, ...]:
    """The cards of all registered policies: the default first, then the others by name."""
    known = [_CARDS[name] for name in policies() if name in _CARDS]
    return tuple(sorted(known, key=lambda card: (card.source != "ours", card.name)))
