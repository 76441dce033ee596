"""The demo's nodes and services as the manifests that operators and teams would write."""

from app.demo.scenario import demo_nodes, demo_services

Manifest = dict[str, object]


def demo_manifests() -> list[tuple[str, str, Manifest]]:
    """(collection of the API, name, body), in the order in which they must be put."""
    projects = sorted({service.project for service in demo_services()})
    return [
        *(("projects", name, _manifest("Project", {"name": name}, {})) for name in projects),
        *(
            (
                "nodes",
                node.name,
                _manifest(
                    "Node",
                    {"name": node.name},
                    {"gpus": [{"index": index, "gpu_type": gpu.gpu_type} for index, gpu in enumerate(node.gpus)]},
                ),
            )
            for node in demo_nodes()
        ),
        *(
            (
                "services",
                service.name,
                _manifest(
                    "Service",
                    {"name": service.name, "project": service.project},
                    {
                        "network": service.network,
                        "slo": {"latency_ms": service.slo.latency_ms, "percentile": service.slo.percentile},
                        "scaling": {
                            "min_replicas": service.scaling.min_replicas,
                            "downscale_delay_s": service.scaling.downscale_delay_s,
                        },
                    },
                ),
            )
            for service in demo_services()
        ),
    ]


def _manifest(kind: str, metadata: Manifest, spec: Manifest) -> Manifest:
    return {"apiVersion": "plimsoll/v1", "kind": kind, "metadata": metadata, "spec": spec}
