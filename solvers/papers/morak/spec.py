"""How Morak's policy is registered."""

from solvers.papers.morak.parameters import MorakParameters
from solvers.types.policy_spec import ALL_OF_SERVICES, Card, PolicySpec

POLICIES = (
    PolicySpec(
        card=Card(
            name="morak",
            title="knee points fill GPUs and split them",
            source="Liu et al., Morak, IEEE MASS 2023, sections III-C and V-C",
            techniques=(
                "papers.morak.knee_partition",
                "sharing.division",
                "baselines.type_by_type",
            ),
            decides=ALL_OF_SERVICES,
            promises=True,
            limits=(
                "Every GPU is given away in full, however little is asked of it.",
                "It knows no price of a move; priority counts only where something stays unserved.",
                "What it needs from the governor is throughput: without one its clock stays where the cap puts it.",
            ),
            good_for="throughput under a power cap, together with the governor power_latency",
        ),
        module="solvers.papers.morak.policy",
        parameters=MorakParameters,
        is_main=True,
    ),
)
