"""How InSS' policy and the variants that its paper compares with are registered."""

from solvers.papers.inss.parameters import InssParameters
from solvers.types.policy_spec import ALL_OF_SERVICES, Card, PolicySpec

_PAPER = "InSS (published in IEEE TPDS 2024)"

POLICIES = (
    PolicySpec(
        card=Card(
            name="inss",
            title="batches at once, shares by a trained actor",
            source=f"{_PAPER}, sections 5.1 to 5.5",
            techniques=(
                "papers.inss.batch_decision",
                "papers.inss.training.actor",
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
        module="solvers.papers.inss.policy",
        parameters=InssParameters,
        is_main=True,
        needs_actor=True,
        trainer="solvers.papers.inss.training.trainer",
    ),
    PolicySpec(
        card=Card(
            name="inss_1e",
            title="inss with one GPU for each network",
            source=f"{_PAPER}, section 3.3, constraint 1e",
            techniques=(
                "papers.inss.batch_decision",
                "papers.inss.training.actor",
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
        module="solvers.papers.inss.inss_1e",
        parameters=InssParameters,
        needs_actor=True,
    ),
    PolicySpec(
        card=Card(
            name="inss_ni",
            title="inss that knows no interference",
            source=f"{_PAPER}, section 6.3, InSS-ni",
            techniques=(
                "papers.inss.batch_decision",
                "papers.inss.training.actor",
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
        module="solvers.papers.inss.inss_ni",
        parameters=InssParameters,
        needs_actor=True,
    ),
    PolicySpec(
        card=Card(
            name="gpulets_bda",
            title="gpulets with the batches of inss",
            source=f"{_PAPER}, section 6.3, BDA-Gpulet",
            techniques=(
                "papers.inss.batch_decision",
                "baselines.half_slo",
                "baselines.type_by_type",
            ),
            decides=ALL_OF_SERVICES,
            promises=False,
            limits=(
                "Shares are those of gpulets, which knows no queue; what then is beyond its capacity stays unserved.",
            ),
            good_for="a baseline that shows what batches alone are worth; in simulations",
        ),
        module="solvers.papers.inss.gpulets_bda",
    ),
)
