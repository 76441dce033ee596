"""The demo's fleet, services and load: HetSev's cluster and SLOs (its section 6), with measured networks.

Networks without published measurements have named substitutes of like size: EfficientNet-B4 for SSD-ResNet50,
RegNetX-8GF for the Transformer. Latencies on the T4 are scaled from the V100 and marked so in the catalogue.
"""

from dataclasses import dataclass

from agents.sim.cluster import ClusterScript
from agents.sim.load.arrivals import ArrivalProcess, LoadShape, Spike
from agents.sim.spec import SimulatedNodeSpec, make_node
from app.catalogue.catalogue import load_gpu_types, load_profiles
from app.simulate.run.closed_loop import ClusterPlan
from app.store.store import PolicySettings
from solvers.types.state import Scaling, Service, Slo

DURATION_S = 3000
"""HetSev's cost experiment (its section 6.3) lasts about as long."""

KEPT_S = 86_400
"""With `--keep` the load goes on for a day."""

PERIOD_S = 15.0
AGENT_PERIOD_S = 5.0
LAUNCH_S = 10.0

MIGRATION_S = 40.0
"""A replica that moves to another node serves on this long: two agent periods and a launch, twice over."""

GPU_TYPES = ("T4", "V100-32GB")
SPIKE_FACTOR = 4.0
OPENING = Spike(start_s=0.0, length_s=45.0, factor=0.0, ramp_s=30.0)
"""Traffic opens once the services are deployed, and not all at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoService:
    """One service of the demo and its load."""

    name: str
    network: str
    slo_ms: float
    mean_rps: float
    spike_start_s: float | None
    phase_s: float
    burst_service: str


SERVICES = (
    DemoService(
        name="resnet50",
        network="resnet50",
        slo_ms=400.0,
        mean_rps=120.0,
        spike_start_s=1800.0,
        phase_s=0.0,
        burst_service="conv",
    ),
    DemoService(
        name="inception",
        network="inception_v3",
        slo_ms=600.0,
        mean_rps=80.0,
        spike_start_s=1800.0,
        phase_s=200.0,
        burst_service="conv",
    ),
    DemoService(
        name="detection",
        network="efficientnet_b4",
        slo_ms=900.0,
        mean_rps=40.0,
        spike_start_s=None,
        phase_s=900.0,
        burst_service="conv",
    ),
    DemoService(
        name="translation",
        network="regnet_x_8gf",
        slo_ms=1200.0,
        mean_rps=30.0,
        spike_start_s=None,
        phase_s=1500.0,
        burst_service="conv",
    ),
)
"""SLOs and networks: HetSev, Table 1 and section 6; mean rates add up to its low load, 200 to 300 rps."""


def demo_nodes() -> tuple[SimulatedNodeSpec, ...]:
    """Four nodes with two V100s each and four with two T4s each."""
    memory_mib = {
        gpu_type.name: gpu_type.memory_mib for gpu_type in load_gpu_types(GPU_TYPES)
    }
    return tuple(
        make_node(
            f"{label}-{number}",
            gpu_type,
            gpus=2,
            memory_mib=memory_mib[gpu_type],
            launch_s=LAUNCH_S,
        )
        # A slow and cheap type next to a fast one: which of them serves a request best depends on its SLO.
        for label, gpu_type in (("t4", "T4"), ("v100", "V100-32GB"))
        for number in range(1, 5)
    )


def demo_services() -> tuple[Service, ...]:
    """The four services: 98 % of the requests within the SLO, at least one replica each."""
    return tuple(
        Service(
            name=service.name,
            # Two projects, so that costs can be shown by team.
            project="vision" if service.name != "translation" else "language",
            network=service.network,
            slo=Slo(latency_ms=service.slo_ms, percentile=0.98),
            scaling=Scaling(min_replicas=1, downscale_delay_s=90.0),
        )
        for service in SERVICES
    )


def demo_loads(seed: int, duration_s: int = DURATION_S) -> dict[str, ArrivalProcess]:
    """Requests by service: a day's curve in the time of the trace, a spike, and bursts resampled from a real trace."""
    return {
        service.name: ArrivalProcess(
            shape=LoadShape(
                mean_rps=service.mean_rps,
                day_amplitude=0.4,
                day_period_s=float(DURATION_S),
                day_phase_s=service.phase_s,
                spikes=(OPENING, *_spikes(service)),
                burst_service=service.burst_service,
                burst_weight=0.5,
            ),
            duration_s=duration_s,
            seed=seed,
            stream=stream,
        )
        # A stream of its own each: a service that is added leaves the others' requests as they are.
        for stream, service in enumerate(SERVICES)
    }


def _spikes(service: DemoService) -> tuple[Spike, ...]:
    if service.spike_start_s is None:
        return ()
    return (
        Spike(
            start_s=service.spike_start_s,
            length_s=300.0,
            factor=SPIKE_FACTOR,
            ramp_s=60.0,
        ),
    )


def demo_settings(policy: str, seed: int) -> PolicySettings:
    """How the loop decides in the demo; the baseline differs in the policy alone."""
    return PolicySettings(
        policy=policy,
        period_s=PERIOD_S,
        # One window per report, so that no rate is smeared over two.
        window_s=AGENT_PERIOD_S,
        # Twelve reports of an agent.
        stale_after_s=4 * PERIOD_S,
        max_replicas_per_gpu=6,
        seed=seed,
    )


def demo_cluster(policy: str, seed: int, *, load_s: int = DURATION_S) -> ClusterPlan:
    """The whole demo cluster under one policy; a longer load begins as a shorter one."""
    networks = [service.network for service in SERVICES]
    return ClusterPlan(
        nodes=demo_nodes(),
        gpu_types=load_gpu_types(GPU_TYPES),
        points=load_profiles(networks, GPU_TYPES),
        services=demo_services(),
        scenario=ClusterScript(loads=demo_loads(seed, load_s), seed=seed),
        settings=demo_settings(policy, seed),
        agent_period_s=AGENT_PERIOD_S,
        handover_s=MIGRATION_S,
    )


Manifest = dict[str, object]


def demo_manifests() -> list[tuple[str, str, Manifest]]:
    """(collection of the API, name, body), in the order in which they must be put."""
    # Owners before what they own; the GPU types and networks are the catalogue's, which is there already.
    projects = sorted({service.project for service in demo_services()})
    return [
        *(
            ("projects", name, _manifest("Project", {"name": name}, {}))
            for name in projects
        ),
        *(("nodes", node.name, _node(node)) for node in demo_nodes()),
        *(
            ("services", service.name, _service_manifest(service))
            for service in demo_services()
        ),
    ]


def _node(node: SimulatedNodeSpec) -> Manifest:
    gpus = [
        {"index": index, "gpu_type": gpu.gpu_type}
        for index, gpu in enumerate(node.gpus)
    ]
    return _manifest("Node", {"name": node.name}, {"gpus": gpus})


def _service_manifest(service: Service) -> Manifest:
    slo = service.slo
    scaling = service.scaling
    return _manifest(
        "Service",
        {"name": service.name, "project": service.project},
        {
            "network": service.network,
            "slo": {"latency_ms": slo.latency_ms, "percentile": slo.percentile},
            "scaling": {
                "min_replicas": scaling.min_replicas,
                "downscale_delay_s": scaling.downscale_delay_s,
            },
        },
    )


def _manifest(kind: str, metadata: Manifest, spec: Manifest) -> Manifest:
    return {
        "apiVersion": "plimsoll/v1",
        "kind": kind,
        "metadata": metadata,
        "spec": spec,
    }
