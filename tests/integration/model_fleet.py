"""Nodes of H100s, a service of a language model, and what nodes report of their replicas."""

from tests.integration.api_harness import Api

NETWORK = "Llama-3.1-70B"

GPU_READING = {
    "gpu_type": "H100",
    "memory_mib": 81920,
    "memory_used_mib": 70000,
    "power_w": 300,
    "energy_j": 600,
    "clock_mhz": 1980,
    "busy_percent": 50,
}
"""Of a busy H100, but for its index."""


def service(**spec: object) -> dict[str, object]:
    """The manifest of `chat`."""
    return {
        "kind": "Service",
        "metadata": {"name": "chat"},
        "spec": {
            "kind": "llm",
            "network": NETWORK,
            "slo": {"ttft_ms": 2000, "itl_ms": 100, "percentile": 0.95},
            "scaling": {"min_replicas": 1},
            **spec,
        },
    }


def gpu_type(**spec: object) -> dict[str, object]:
    """That of a rented H100."""
    return {
        "kind": "GpuType",
        "metadata": {"name": "H100"},
        "spec": {
            "price_usd_per_hour": 4.5,
            "memory_mib": 81920,
            "idle_w": 70,
            "power_cap_w": 700,
            "clocks_mhz": [1980],
            **spec,
        },
    }


def node(name: str, gpus: int) -> dict[str, object]:
    """A node of H100s."""
    listed = [{"index": index, "gpu_type": "H100"} for index in range(gpus)]
    return {"kind": "Node", "metadata": {"name": name}, "spec": {"gpus": listed}}


def put_model(api: Api) -> None:
    """A node of two H100s and one of eight, both heard, and `chat`."""
    api.put("gpu-types/H100", gpu_type())
    for name, gpus in (("n1", 2), ("n2", 8)):
        api.put(f"nodes/{name}", node(name, gpus))
        assert api.sync(name).status_code == 200
    api.put("services/chat", service())


def ready_replicas(api: Api, name: str) -> list[dict[str, object]]:
    """What a node reports of the replicas that the plan in force has there, once all are ready."""
    plans = api.get("plans?state=target&limit=1")["items"]
    gpus = api.get(f"plans/{plans[0]['id']}")["gpus"] if plans else []
    fields = ("id", "service", "sm_percent", "batch", "memory_mib")
    return [
        {
            **{field: replica[field] for field in fields},
            "gpu_index": int(gpu["id"].split("-")[-1]),
            "state": "ready",
            "batches": 10,
        }
        for gpu in gpus
        if gpu["node"] == name
        for replica in gpu["replicas"]
    ]
