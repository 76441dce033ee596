"""The table of the cluster's metrics: what `GET /api/v1/metrics` shows, with units and labels."""

from collections.abc import Iterator, Mapping
from typing import Final

from agents.base.exposition import Family, Kind

MAX_SERIES: Final = 1000
"""Nodes, GPUs per GPU metric, and services that are shown; `plimsoll_left_out` counts the others."""

_SERVICE = ("project", "service")
_NODE = ("node",)
_GPU = ("node", "gpu", "gpu_type")
_HOURLY = "since the hour began (UTC): a counter that starts again every hour"


def _families(
    labels: tuple[str, ...], texts: Mapping[str, str], kind: Kind = "gauge"
) -> Iterator[Family]:
    """Metrics with the same labels, from name to text."""
    for name, text in texts.items():
        yield Family(name=name, text=text, labels=labels, kind=kind)


# Units are in the names, and are Prometheus' base units: seconds, bytes, hertz, ratios from 0 to 1.
FAMILIES: Final = (
    # The cluster.
    *_families(
        ("state",),
        {
            "plimsoll_cluster_nodes": "Nodes, by whether their agents reported recently",
        },
    ),
    *_families(
        ("gpu_type", "state"),
        {
            "plimsoll_cluster_gpus": (
                "GPUs by state: used by the plan in force, free, unhealthy or cordoned"
            ),
        },
    ),
    *_families(
        ("kind",),
        {
            "plimsoll_left_out": "Objects beyond those that are shown here",
        },
    ),
    *_families(
        (),
        {
            "plimsoll_loop_paused": "1 while the operator has paused the loop",
        },
    ),
    *_families(
        ("policy", "mode"),
        {
            "plimsoll_policy_info": "Always 1: the policy in force and its mode",
        },
    ),
    *_families(
        (),
        {
            "plimsoll_plans_waiting": "Plans that wait for a person's approval",
            "plimsoll_plan_age_seconds": "Since the newest decision",
            "plimsoll_renumbered_timestamp_seconds": (
                "When a node that contradicted the database last made generations begin again; "
                "absent: not since `plimsoll restore`"
            ),
        },
    ),
    *_families(
        ("kind", "state"),
        {
            "plimsoll_tasks": "Training and offline tasks",
        },
    ),
    # Nodes and their agents.
    *_families(
        _NODE,
        {
            "plimsoll_node_silent_seconds": "Since the node's agent last reported",
            "plimsoll_node_heard": "1 where that is within the policy's limit",
            "plimsoll_node_cordoned": "1 where the node receives nothing new",
            "plimsoll_node_problems": "Problems that the node reports",
            "plimsoll_node_clock_skew_seconds": "How far the agent's clock is ahead",
            "plimsoll_node_wanted_generation": "Generation of its newest command; 0 = none",
            "plimsoll_node_observed_generation": "Generation that it has in force",
            "plimsoll_node_command_refused": "1 where its newest command was refused or failed",
        },
    ),
    # GPUs.
    *_families(
        _GPU,
        {
            "plimsoll_gpu_healthy": "1 where its agent reports it healthy",
            "plimsoll_gpu_sm_granted_ratio": "SMs allocated to services by the plan in force",
            "plimsoll_gpu_power_limit_watts": "Power limit by the plan in force",
            "plimsoll_gpu_clock_limit_hertz": "Graphics clock by the plan in force",
            "plimsoll_gpu_power_watts": "Power, measured, mean of the newest window",
            "plimsoll_gpu_clock_hertz": "Graphics clock, measured",
            "plimsoll_gpu_busy_ratio": "Share of the latest window in which it was executing",
            "plimsoll_gpu_memory_used_bytes": "Memory in use, measured",
            "plimsoll_gpu_memory_bytes": "Memory",
        },
    ),
    # Services.
    *_families(
        (*_SERVICE, "gpu_type"),
        {
            "plimsoll_service_desired_replicas": "Replicas by the plan in force, or by the newest one where plans are "
            "advice only; it stays while nothing is heard, and is absent before",
        },
    ),
    *_families(
        (*_SERVICE, "gpu_type", "state"),
        {
            "plimsoll_service_current_replicas": "Replicas that agents report, by their state",
        },
    ),
    *_families(
        _SERVICE,
        {
            "plimsoll_service_planned_requests_per_second": "Arrival rate that the plan in force carries",
        },
    ),
    *_families(
        (*_SERVICE, "gpu_type"),
        {
            "plimsoll_service_cost_usd_per_hour": "Cost of the plan in force, by SM percent",
        },
    ),
    *_families(
        _SERVICE,
        {
            "plimsoll_service_arrivals_per_second": "Requests that arrived in the last minute",
            "plimsoll_service_latency_seconds": "Latency at the SLO's percentile, over the last minute",
            "plimsoll_service_slo_seconds": "The SLO's latency",
            "plimsoll_service_slo_ratio": "Share of requests that must meet the SLO's latency",
            "plimsoll_service_slo_compliance_ratio": (
                "Share of requests that met the SLO's latency in the last minute"
            ),
            "plimsoll_service_telemetry_age_seconds": "Since the newest window ended",
            "plimsoll_service_telemetry_stale": "1 where that is beyond the policy's limit, or there was none",
        },
    ),
    # Counters begin at 0 with every hour, which `rate` takes for a restart: a process keeps no sums of its own.
    *_families(
        _SERVICE,
        {
            "plimsoll_service_requests_total": f"Requests that arrived, {_HOURLY}",
            "plimsoll_service_served_total": f"Requests answered, {_HOURLY}",
            "plimsoll_service_in_slo_total": f"Requests answered in time, {_HOURLY}",
            "plimsoll_service_rejected_total": f"Requests refused or lost, {_HOURLY}",
            "plimsoll_service_gone_total": f"Requests left by their clients in time: no misses, {_HOURLY}",
            "plimsoll_service_unmeasured_total": f"Of those answered, streams of unknown APIs, {_HOURLY}",
            "plimsoll_service_cost_usd_total": (
                f"Cost by SM percent, `(idle)` and `(tasks)` among the services, {_HOURLY}"
            ),
        },
        kind="counter",
    ),
    *_families(
        _SERVICE,
        {
            "plimsoll_service_hour_energy_joules": (
                "Energy since the hour began (UTC), "
                "as report.energy_by_service_hour divides it"
            ),
        },
    ),
)
