"""How OLTunes' policy is registered."""

from solvers.papers.oltunes.parameters import OltunesParameters
from solvers.types.policy_spec import ALL_OF_SERVICES, Card, PolicySpec

POLICIES = (
    PolicySpec(
        card=Card(
            name="oltunes",
            title="tuning score and affinity; dispatches jobs",
            source="Kim, Ha, Kim, OLTunes, Cluster Computing 2025",
            techniques=("papers.oltunes.affinity", "papers.oltunes.tuning_score"),
            decides=(*ALL_OF_SERVICES, "tasks"),
            promises=True,
            limits=(
                "It looks at one service at a time and never moves what runs: more GPUs than joint.",
                "Affinity as printed lets few services share while the fleet is not full.",
            ),
            good_for="offline jobs with deadlines on a fleet that is there anyway, next to some services",
        ),
        module="solvers.papers.oltunes.policy",
        parameters=OltunesParameters,
        is_main=True,
        dispatches_jobs="solvers.papers.oltunes.job_scheduler",
    ),
)
