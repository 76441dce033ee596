"""How HetSev's policy is registered."""

from solvers.papers.hetsev.parameters import HetsevParameters
from solvers.types.policy_spec import ALL_OF_SERVICES, Card, PolicySpec

_PAPER = "HetSev, Electronics 2023, 12, 240"

POLICIES = (
    PolicySpec(
        card=Card(
            name="hetsev",
            title="counts per GPU type, then SM %, then places",
            source=f"{_PAPER}, sections 4.1 and 4.2",
            techniques=(
                "autoscale",
                "sharing",
                "placement",
                "papers.hetsev.fair_queues",
                "greedy.configure",
            ),
            decides=ALL_OF_SERVICES,
            promises=True,
            limits=(
                "It proves its steps, not their composition: it misses what deciding all at once would gain.",
                "No two replicas of a network share a GPU, though their services be different.",
            ),
            good_for="plans whose every step can be read and exported; changes as small as the counts ask",
        ),
        module="solvers.papers.hetsev.policy",
        parameters=HetsevParameters,
        exporter="solvers.papers.hetsev.counts",
        is_main=True,
    ),
)
