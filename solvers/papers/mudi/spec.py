"""How Mudi's policy is registered."""

from solvers.papers.mudi.parameters import MudiParameters
from solvers.types.policy_spec import ALL_OF_SERVICES, Card, PolicySpec

POLICIES = (
    PolicySpec(
        card=Card(
            name="mudi",
            title="one service per GPU, training next to it",
            source="Chen et al., EuroSys 2025",
            techniques=(
                "baselines.one_per_gpu",
                "papers.mudi.fill",
                "papers.mudi.smallest_slope",
                "papers.mudi.gp_lcb",
            ),
            decides=(*ALL_OF_SERVICES, "tasks"),
            promises=True,
            limits=(
                "Services never share a GPU with each other: small ones cost a GPU each.",
                "Batches and shares are tuned only on GPUs with tasks; deadlines of tasks buy no idle GPU.",
            ),
            good_for="a fleet that is there anyway, and is to train next to its services as fast as their SLOs allow",
        ),
        module="solvers.papers.mudi.policy",
        parameters=MudiParameters,
        is_main=True,
        fill="solvers.papers.mudi.policy",
    ),
)
