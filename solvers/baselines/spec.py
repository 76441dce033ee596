"""How the baselines are registered."""

from solvers.types.policy_spec import ALL_OF_SERVICES, Card, PolicySpec

POLICIES = (
    PolicySpec(
        card=Card(
            name="k8s_hpa",
            title="Kubernetes' autoscaler on whole GPUs",
            source="Kubernetes' HorizontalPodAutoscaler; NVIDIA's device plugin",
            techniques=("greedy.scaling_rules", "laws.colocation"),
            decides=("GPU types", "replicas", "batch", "clock"),
            promises=True,
            limits=(
                "As it is registered GPUs are never shared, and the GPU type of a new replica is drawn by seed.",
                "`bench.demo` sets it up with the best type, parts and target of each service.",
            ),
            good_for="a baseline: what a cluster without Plimsoll would do",
        ),
        module="solvers.baselines.k8s_hpa",
    ),
    PolicySpec(
        card=Card(
            name="gpulets",
            title="at most two shares per GPU, knee first",
            source="Choi et al., USENIX ATC 2022, section 4",
            techniques=(
                "baselines.half_slo",
                "baselines.type_by_type",
                "laws.colocation",
            ),
            decides=ALL_OF_SERVICES,
            promises=False,
            limits=(
                "It knows no queue: a replica is taken to serve what it executes within half its SLO.",
                "Never three services on a GPU; no priority, no price of a move.",
            ),
            good_for="a baseline that shares GPUs in space and knows that neighbours hurt; in simulations",
        ),
        module="solvers.baselines.gpulets",
        fill="solvers.baselines.gpulets",
    ),
    PolicySpec(
        card=Card(
            name="gslice",
            title="SM % that tunes itself by measured latency",
            source="Dhakal et al., ACM SoCC 2020",
            techniques=(
                "baselines.half_slo",
                "baselines.gslice_tuning",
                "greedy.arrange",
            ),
            decides=ALL_OF_SERVICES,
            promises=False,
            limits=(
                "It finds out by missing SLOs, and only after the fact.",
                "Neighbours that come are a surprise; priority only decides who is placed first.",
            ),
            good_for="a baseline that needs no predictions beyond the profile alone; in simulations",
        ),
        module="solvers.baselines.gslice",
        fill="solvers.baselines.gslice",
    ),
    PolicySpec(
        card=Card(
            name="igniter",
            title="extra SM % for what neighbours take",
            source="Xu et al., IEEE TPDS 2023, theorem 1 and algorithms 1 and 2",
            techniques=(
                "baselines.half_slo",
                "baselines.type_by_type",
                "laws.colocation",
            ),
            decides=ALL_OF_SERVICES,
            promises=False,
            limits=(
                "It knows no queue: a replica is taken to serve what it executes within half its SLO.",
                "No priority, no price of a move; a service that finds no room stays unserved as a whole.",
            ),
            good_for="a baseline that knows interference; in simulations",
        ),
        module="solvers.baselines.igniter",
    ),
    PolicySpec(
        card=Card(
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
            good_for="a baseline for training next to services; in simulations",
        ),
        module="solvers.baselines.muxflow",
        fill="solvers.baselines.muxflow",
    ),
)
