"""Cards: what every policy is, where it comes from, what it needs and when to choose it, as people are told.

A policy's docstring says how it decides; its card says the same in a few lines that can be laid beside another's. A
test keeps the cards complete: whoever registers a policy writes its card.
"""

from dataclasses import dataclass
from typing import Literal

from solvers.errors import UnknownPolicy
from solvers.policies import policies

Decides = Literal["GPU types", "replicas", "placement", "SM percent", "batch", "clock", "tasks"]


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


_ALL: tuple[Decides, ...] = ("GPU types", "replicas", "placement", "SM percent", "batch", "clock")

_OURS = (
    Card(
        name="joint",
        title="everything in one program, with a bound",
        source="ours",
        techniques=("joint", "joint.kernels", "joint.replanning", "joint.whole"),
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
        techniques=("autoscale", "sharing", "placement", "dispatch", "policies.configure"),
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
        techniques=("autoscale.greedy", "policies.configure", "policies.scaling"),
        decides=_ALL,
        promises=True,
        limits=(
            "A service is scaled by its own trigger; others' needs count by priority only.",
            "What runs is never swapped for something cheaper.",
        ),
        good_for="fleets where replicas must hardly move, and where no solver may be used",
    ),
)

_BASELINES = (
    Card(
        name="k8s_hpa",
        title="Kubernetes' autoscaler on whole GPUs",
        source="Kubernetes' HorizontalPodAutoscaler",
        techniques=("policies.scaling", "predict.colocation"),
        decides=("GPU types", "replicas", "batch", "clock"),
        promises=True,
        limits=("GPUs are never shared.", "The GPU type of a new replica is drawn by seed."),
        good_for="a baseline: what a cluster without Plimsoll would do",
    ),
    Card(
        name="gpulets",
        title="at most two shares per GPU, knee first",
        source="Choi et al., USENIX ATC 2022, section 4",
        techniques=("policies.half_slo", "policies.type_by_type", "predict.colocation"),
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
        techniques=("policies.half_slo", "policies.tuning", "policies.arrange"),
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
        techniques=("policies.half_slo", "policies.type_by_type", "predict.colocation"),
        decides=_ALL,
        promises=False,
        limits=(
            "It knows no queue: a replica is taken to serve what it executes within half its SLO.",
            "No priority, no price of a move; a service that finds no room stays unserved as a whole.",
        ),
        good_for="a baseline that knows interference; in simulations",
    ),
)

_CARDS = {card.name: card for card in (*_OURS, *_OF_HETSEV, *_BASELINES)}


def cards() -> tuple[Card, ...]:
    """The cards of all registered policies: the default first, then the others by name."""
    known = [_CARDS[name] for name in policies() if name in _CARDS]
    return tuple(sorted(known, key=lambda card: (card.source != "ours", card.name)))


def card(name: str) -> Card:
    """The card of the policy of that name. Raises UnknownPolicy, which lists the names that exist."""
    if name not in _CARDS:
        raise UnknownPolicy(f"no policy is called {name!r}; there are {', '.join(policies())}")
    return _CARDS[name]
