"""How policy `joint` is registered."""

from solvers.types.policy_spec import ALL_OF_SERVICES, Card, PolicySpec

POLICIES = (
    PolicySpec(
        card=Card(
            name="joint",
            title="everything in one program, with a bound",
            source="ours",
            techniques=("joint", "joint.kernels", "joint.replan", "joint.heuristics"),
            decides=ALL_OF_SERVICES,
            promises=True,
            limits=(
                "On large fleets its plans have a proven gap of some per cent.",
                "Which of several good plans it finds in its time depends on the seed.",
            ),
            good_for="the default: the least cost that keeps every SLO, under limits on what moves",
        ),
        module="solvers.joint.policy",
        is_main=True,
        fill="solvers.backfill.exact",
        plans_slices=True,
    ),
)
