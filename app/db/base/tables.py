"""The tables as SQLAlchemy sees them: names and types of columns, for building statements.

The schema itself, with its constraints, is made by `migrations/`; a test compares the two.
"""

from typing import Any, TypeAlias

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    Row,
    Table,
    Text,
)
from sqlalchemy.dialects.postgresql import TSTZRANGE

from app.db.base.columns import JSON, TEXTS, TIME, key, must

metadata = MetaData()

AnyRow: TypeAlias = Row[*tuple[Any, ...]]
"""A row of any columns; it is turned into a noun at once."""


def _table(name: str, *columns: Column[Any]) -> Table:
    return Table(name, metadata, *columns)


cluster = _table(
    "cluster",
    Column("singleton", Boolean, primary_key=True),
    must("catalogue_revision", BigInteger),
    must("profile_revision", BigInteger),
    must("target_generation", BigInteger),
    must("fit_revision", BigInteger),
)

project = _table("project", key("name"), must("labels", JSON), must("created_at", TIME))

gpu_type = _table(
    "gpu_type",
    key("name"),
    must("memory_mib", Double),
    must("sm_percent_step", Double),
    must("idle_w", Double),
    must("power_cap_w", Double),
    must("clocks_mhz", ARRAY(Double)),
    *(must(name, Double) for name in ("launch_per_neighbour", "launch_base")),
    must("provenance", Text),
    must("labels", JSON),
    must("created_at", TIME),
)

gpu_price = _table(
    "gpu_price",
    key("gpu_type"),
    Column("valid", TSTZRANGE, primary_key=True),
    must("price_usd_per_hour", Numeric(12, 6)),
)

node = _table(
    "node",
    key("id"),
    must("cordoned", Boolean),
    must("labels", JSON),
    must("created_at", TIME),
    must("agent_version", Text),
    Column("boot", Text),
    Column("last_seen_at", TIME),
    Column("last_window_end", TIME),
    must("observed_generation", BigInteger),
    must("clock_skew_s", Double),
    must("problems", TEXTS),
    Column("power_cap_w", Double),
    must("repartition", ARRAY(Integer)),
    must("metrics_address", Text),
)

gpu = _table(
    "gpu",
    key("id"),
    must("node", Text),
    must("gpu_type", Text),
    must("index", Integer),
    must("healthy", Boolean),
    must("cordoned", Boolean),
    must("created_at", TIME),
)

network = _table(
    "network",
    key("name"),
    must("description", Text),
    must("labels", JSON),
    must("created_at", TIME),
)

profile = _table(
    "profile",
    key("id", BigInteger),
    must("network", Text),
    must("gpu_type", Text),
    must("version", Integer),
    must("is_current", Boolean),
    must("sensitivity", Double),
    must("provenance", Text),
    must("source", Text),
    must("created_at", TIME),
)

service = _table(
    "service",
    key("name"),
    must("project", Text),
    must("generation", Integer),
    must("created_at", TIME),
    Column("deleted_at", TIME),
)

service_version = _table(
    "service_version",
    key("service"),
    key("generation", Integer),
    must("network", Text),
    must("slo_latency_ms", Double),
    must("slo_percentile", Double),
    must("min_replicas", Integer),
    Column("max_replicas", Integer),
    must("upscale_delay_s", Double),
    must("downscale_delay_s", Double),
    must("buffer_replicas", Integer),
    must("priority", Double),
    Column("allowed_gpu_types", TEXTS),
    must("excluded_gpu_types", TEXTS),
    must("mode", Text),
    must("variants", JSON),
    must("accuracy_floor", Double),
    must("labels", JSON),
    must("annotations", JSON),
    must("created_at", TIME),
    must("created_by", Text),
)

policy = _table(
    "policy",
    key("version", Integer),
    must("policy", Text),
    must("mode", Text),
    must("paused", Boolean),
    must("period_s", Double),
    must("objective", Text),
    must("energy_price_usd_per_kwh", Double),
    must("carbon_price_usd_per_t", Double),
    must("carbon_g_per_kwh", ARRAY(Double)),
    must("max_replicas_per_gpu", Integer),
    must("migration_cost_usd_per_hour", Double),
    must("headroom", Double),
    must("stale_after_s", Double),
    must("solve_seconds", Double),
    must("solve_work", Double),
    must("seed", BigInteger),
    must("window_s", Double),
    must("fit_quantile", Double),
    must("learning", Boolean),
    must("hysteresis", Double),
    must("move_budget", Double),
    must("min_dwell_s", Double),
    Column("governor", Text),
    Column("power_budget_w", Double),
    must("groups", JSON),
    must("approve_switch", Boolean),
    must("created_at", TIME),
    must("created_by", Text),
)

policy_memory = _table("policy_memory", key("policy"), Column("memory", JSON))

actor = _table(
    "actor",
    key("id", BigInteger),
    must("fleet_fingerprint", Text),
    must("created_at", TIME),
    must("notes", Text),
    must("weights", LargeBinary),
)

token = _table(
    "token",
    key("id"),
    must("name", Text),
    must("sha256", LargeBinary),
    must("scope", Text),
    Column("projects", TEXTS),
    must("created_at", TIME),
    *(Column(name, TIME) for name in ("expires_at", "last_used_at", "revoked_at")),
)

session = _table(
    "session",
    Column("sha256", LargeBinary, primary_key=True),
    must("token", Text),
    *(must(name, TIME) for name in ("created_at", "expires_at")),
)

idempotency = _table(
    "idempotency",
    key("key"),
    key("actor"),
    key("endpoint"),
    must("request_sha256", LargeBinary),
    Column("status", Integer),
    Column("body", LargeBinary),
    must("created_at", TIME),
)

event = _table(
    "event",
    key("id", BigInteger),
    must("at", TIME),
    must("actor", Text),
    must("kind", Text),
    must("subject", Text),
    must("reason", Text),
    Column("plan_id", BigInteger),
    Column("request_id", Text),
    *(Column(name, JSON) for name in ("before", "after")),
)

task = _table(
    "task",
    key("id"),
    *(
        must(name, Text)
        for name in ("name", "project", "kind", "network", "submitted_by")
    ),
    *(
        must(name, Integer)
        for name in ("run", "generation", "batch", "starts", "swaps")
    ),
    must("iterations", BigInteger),
    *(
        must(name, JSON)
        for name in ("labels", "annotations", "layers", "variants", "stated")
    ),
    *(must(name, Double) for name in ("accuracy_floor", "priority", "weight")),
    *(must(name, Double) for name in ("done_iterations", "iteration_ms", "ran_s")),
    *(
        Column(name, Double)
        for name in ("memory_mib", "deadline_after_s", "sm_percent")
    ),
    *(Column(name, Text) for name in ("gpu", "state")),
    must("submitted_at", TIME),
    *(
        Column(name, TIME)
        for name in (
            "cancelled_at",
            "deleted_at",
            "last_ran_at",
            "finished_at",
            "starved_at",
        )
    ),
)

plan = _table(
    "plan",
    key("id", BigInteger),
    must("at", TIME),
    must("state", Text),
    must("policy", Text),
    must("policy_version", Integer),
    must("catalogue_revision", BigInteger),
    Column("generation", BigInteger),
    Column("parent", BigInteger),
    must("document", JSON),
    Column("bound", JSON),
    Column("problem", LargeBinary),
    must("status", Text),
    must("cost_usd_per_hour", Numeric),
    Column("lower_bound_usd_per_hour", Double),
    Column("gap_percent", Double),
    must("seconds", Double),
    must("method", Text),
    must("messages", TEXTS),
    must("reason", Text),
    Column("prices", JSON),
)

plan_step = _table(
    "plan_step",
    key("plan_id", BigInteger),
    key("position", Integer),
    must("technique", Text),
    must("method", Text),
    must("status", Text),
    Column("objective", Double),
    Column("bound", Double),
    must("seconds", Double),
    must("messages", TEXTS),
)

plan_violation = _table(
    "plan_violation",
    key("plan_id", BigInteger),
    key("position", Integer),
    must("rule", Text),
    must("severity", Text),
    must("place", Text),
    must("detail", Text),
)

demand = _table(
    "demand",
    key("service"),
    Column("at", TIME, primary_key=True),
    must("arrival_rate_rps", Double),
    key("method"),
    Column("plan_id", BigInteger),
    Column("low_rps", Double),
    Column("high_rps", Double),
)

forecast_choice = _table(
    "forecast_choice",
    key("service"),
    must("technique", Text),
    must("seasons", JSON),
    must("margin", Double),
    must("reserve_rps", Double),
    must("scores", JSON),
    must("at", TIME),
)

target = _table(
    "target",
    key("generation", BigInteger),
    must("plan_id", BigInteger),
    must("valid", TSTZRANGE),
)

command = _table(
    "command",
    key("node"),
    key("generation", BigInteger),
    must("body", LargeBinary),
    must("created_at", TIME),
)

acknowledgement = _table(
    "acknowledgement",
    key("node"),
    key("generation", BigInteger),
    must("status", Text),
    must("detail", Text),
    must("at", TIME),
)

budget = _table(
    "budget",
    key("name"),
    Column("project", Text),
    must("period", Text),
    must("limit_usd", Numeric),
    must("action", Text),
    must("created_at", TIME),
    must("protected_priority", Double),
    *(must(name, Integer) for name in ("told_percent", "degrade_step")),
    *(Column(name, TIME) for name in ("told_since", "degrade_at")),
)

note = _table(
    "note",
    key("kind"),
    key("name"),
    must("labels", JSON),
    must("annotations", JSON),
    must("spec", JSON),
)
