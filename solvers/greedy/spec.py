"""How the greedy policy, to which `joint` falls back, is registered."""

from solvers.greedy.scaling_rules import SaturationRule
from solvers.types.policy_spec import ALL_OF_SERVICES, Card, PolicySpec

_PAPER = "HetSev, Electronics 2023, 12, 240"

POLICIES = (
    PolicySpec(
        card=Card(
            name="hetsev_greedy",
            title="one replica more or less per trigger",
            source=f"{_PAPER}, section 4.1",
            techniques=("autoscale.greedy", "greedy.configure", "greedy.scaling_rules"),
            decides=ALL_OF_SERVICES,
            promises=True,
            limits=(
                "A service is scaled by its own trigger; others' needs count by priority only.",
                "What runs is never swapped for something cheaper.",
            ),
            good_for="fleets where replicas must hardly move, and where no solver may be used",
        ),
        module="solvers.greedy.policy",
        parameters=SaturationRule,
    ),
)
