"""The table of the cluster's metrics: what `GET /api/v1/metrics` shows, with units and labels."""

from typing import Final

from agents.base.exposition import Family

MOST: Final = 1000
"""Nodes, GPUs per GPU metric, and services that are shown; `plimsoll_left_out` counts the rest."""

_SERVICE = ("project", "service")
_GPU = ("node", "gpu", "gpu_type")
_HOURLY = "since the hour began (UTC): a counter that starts again every hour"

FAMILIES: Final = (
    # The cluster.
    Family(
        name="plimsoll_cluster_nodes",
        text="Nodes, by whether their agents were heard lately",
        labels=("state",),
    ),
    Family(
        name="plimsoll_cluster_gpus",
        text="GPUs by what becomes of them: used by the plan in force, free, unhealthy or cordoned",
        labels=("gpu_type", "state"),
    ),
    Family(
        name="plimsoll_left_out",
        text="Objects beyond those that are shown here",
        labels=("kind",),
    ),
    Family(
        name="plimsoll_loop_paused", text="1 while the operator has paused the loop"
    ),
    Family(
        name="plimsoll_policy_info",
        text="Always 1: the policy that decides, and how far",
        labels=("policy", "mode"),
    ),
    Family(
        name="plimsoll_plans_waiting", text="Plans that wait for a person's approval"
    ),
    Family(name="plimsoll_plan_age_seconds", text="Since the newest decision"),
    Family(
        name="plimsoll_tasks",
        text="Training and offline tasks",
        labels=("kind", "state"),
    ),
    # Nodes and their agents.
    Family(
        name="plimsoll_node_silent_seconds",
        text="Since the node's agent was heard",
        labels=("node",),
    ),
    Family(
        name="plimsoll_node_heard",
        text="1 where that is within the policy's limit",
        labels=("node",),
    ),
    Family(
        name="plimsoll_node_cordoned",
        text="1 where the node receives nothing new",
        labels=("node",),
    ),
    Family(
        name="plimsoll_node_problems",
        text="What the node says that it cannot do",
        labels=("node",),
    ),
    Family(
        name="plimsoll_node_clock_skew_seconds",
        text="By which the agent's clock is ahead",
        labels=("node",),
    ),
    Family(
        name="plimsoll_node_wanted_generation",
        text="Generation of its newest command",
        labels=("node",),
    ),
    Family(
        name="plimsoll_node_observed_generation",
        text="Generation that it has in force",
        labels=("node",),
    ),
    Family(
        name="plimsoll_node_command_refused",
        text="1 where its newest command was refused or failed",
        labels=("node",),
    ),
    # GPUs.
    Family(
        name="plimsoll_gpu_healthy",
        text="1 where its agent calls it healthy",
        labels=_GPU,
    ),
    Family(
        name="plimsoll_gpu_sm_granted_ratio",
        text="SMs that the plan in force gives to services",
        labels=_GPU,
    ),
    Family(
        name="plimsoll_gpu_power_limit_watts",
        text="Power limit by the plan in force",
        labels=_GPU,
    ),
    Family(
        name="plimsoll_gpu_clock_limit_hertz",
        text="Graphics clock by the plan in force",
        labels=_GPU,
    ),
    Family(
        name="plimsoll_gpu_power_watts",
        text="Power, measured, mean of the newest window",
        labels=_GPU,
    ),
    Family(
        name="plimsoll_gpu_clock_hertz", text="Graphics clock, measured", labels=_GPU
    ),
    Family(
        name="plimsoll_gpu_busy_ratio",
        text="Share of the newest window in which it executed",
        labels=_GPU,
    ),
    Family(
        name="plimsoll_gpu_memory_used_bytes",
        text="Memory in use, measured",
        labels=_GPU,
    ),
    Family(name="plimsoll_gpu_memory_bytes", text="Memory", labels=_GPU),
    # Services.
    Family(
        name="plimsoll_service_desired_replicas",
        text="Replicas by the plan in force",
        labels=(*_SERVICE, "gpu_type"),
    ),
    Family(
        name="plimsoll_service_current_replicas",
        text="Replicas that agents report, by their state",
        labels=(*_SERVICE, "gpu_type", "state"),
    ),
    Family(
        name="plimsoll_service_planned_requests_per_second",
        text="Arrival rate that the plan in force carries",
        labels=_SERVICE,
    ),
    Family(
        name="plimsoll_service_cost_usd_per_hour",
        text="Cost of the plan in force, by SM percent",
        labels=(*_SERVICE, "gpu_type"),
    ),
    Family(
        name="plimsoll_service_arrivals_per_second",
        text="Requests that came, over the last minute",
        labels=_SERVICE,
    ),
    Family(
        name="plimsoll_service_latency_seconds",
        text="Latency at the SLO's percentile, over the last minute",
        labels=_SERVICE,
    ),
    Family(
        name="plimsoll_service_slo_seconds", text="The SLO's latency", labels=_SERVICE
    ),
    Family(
        name="plimsoll_service_slo_ratio",
        text="Share of requests that the SLO asks for",
        labels=_SERVICE,
    ),
    Family(
        name="plimsoll_service_slo_compliance_ratio",
        text="Share of requests that kept the SLO's latency, over the last minute",
        labels=_SERVICE,
    ),
    Family(
        name="plimsoll_service_telemetry_age_seconds",
        text="Since the newest window ended",
        labels=_SERVICE,
    ),
    Family(
        name="plimsoll_service_telemetry_stale",
        text="1 where that is beyond the policy's limit, or nothing was ever seen",
        labels=_SERVICE,
    ),
    Family(
        name="plimsoll_service_requests_total",
        text=f"Requests that came, {_HOURLY}",
        labels=_SERVICE,
        kind="counter",
    ),
    Family(
        name="plimsoll_service_served_total",
        text=f"Requests answered, {_HOURLY}",
        labels=_SERVICE,
        kind="counter",
    ),
    Family(
        name="plimsoll_service_in_slo_total",
        text=f"Requests answered in time, {_HOURLY}",
        labels=_SERVICE,
        kind="counter",
    ),
    Family(
        name="plimsoll_service_rejected_total",
        text=f"Requests refused or lost, {_HOURLY}",
        labels=_SERVICE,
        kind="counter",
    ),
    Family(
        name="plimsoll_service_cost_usd_total",
        text=f"Cost by SM percent, `(idle)` and `(tasks)` among the services, {_HOURLY}",
        labels=_SERVICE,
        kind="counter",
    ),
    Family(
        name="plimsoll_service_hour_energy_joules",
        text="Energy since the hour began (UTC), as report.energy_by_service_hour divides it",
        labels=_SERVICE,
    ),
)
