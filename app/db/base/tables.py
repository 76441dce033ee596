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
    Uuid,
)
from sqlalchemy.dialects.postgresql import TSTZRANGE

from app.db.base.columns import JSON, TEXTS, TIME, key, may_all, must, must_all

metadata = MetaData()

AnyRow: TypeAlias = Row[*tuple[Any, ...]]
"""A row of any columns; it is turned into a noun at once."""


def _table(name: str, *columns: Column[Any]) -> Table:
    return Table(name, metadata, *columns)


# One row, which pushes and changes of the catalogue lock: so they happen one after the other.
cluster = _table(
    "cluster",
    Column("singleton", Boolean, primary_key=True),
    *must_all(
        BigInteger,
        "catalogue_revision",
        "profile_revision",
        "target_generation",
        "fit_revision",
    ),
    must("incarnation", Uuid),
    *may_all(TIME, "renumbered_at", "backed_up_at"),
    Column("backed_up_by", Text),
)

project = _table(
    "project",
    key("name"),
    must("labels", JSON),
    must("created_at", TIME),
    Column("max_priority", Double),
    Column("max_replicas", Integer),
    Column("max_gpus", Integer),
    Column("max_simulations", Integer),
)

gpu_type = _table(
    "gpu_type",
    key("name"),
    *must_all(Double, "memory_mib", "sm_percent_step", "idle_w", "power_cap_w"),
    *must_all(Double, "launch_per_neighbour", "launch_base"),
    must("paid_count", Integer),
    must("clocks_mhz", ARRAY(Double)),
    must("provenance", Text),
    must("labels", JSON),
    must("created_at", TIME),
    Column("llm", JSON),
)

gpu_price = _table(
    "gpu_price",
    key("gpu_type"),
    # Periods of one type must not overlap: the schema's constraint keeps every hour at one price.
    Column("valid", TSTZRANGE, primary_key=True),
    # Money is decimal here: sums of binary fractions would not add up to a bill.
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
    *may_all(TIME, "last_seen_at", "last_window_end"),
    must("observed_generation", BigInteger),
    must("clock_skew_s", Double),
    must("problems", TEXTS),
    Column("power_cap_w", Double),
    must("repartition", ARRAY(Integer)),
    *must_all(Text, "metrics_address", "router_url"),
    *may_all(TIME, "drain_at", "drained_at"),
)

gpu = _table(
    "gpu",
    key("id"),
    *must_all(Text, "node", "gpu_type"),
    must("index", Integer),
    *must_all(Boolean, "healthy", "cordoned"),
    must("created_at", TIME),
    Column("acquitted_at", TIME),
)

network = _table(
    "network",
    key("name"),
    must("description", Text),
    must("labels", JSON),
    Column("config", JSON),
    must("runs", JSON),
    must("created_at", TIME),
)

profile = _table(
    "profile",
    key("id", BigInteger),
    *must_all(Text, "network", "gpu_type"),
    must("version", Integer),
    must("is_current", Boolean),
    must("sensitivity", Double),
    *must_all(Text, "provenance", "source"),
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

# Generations are never changed, so an old plan can be explained by what was asked for then.
service_version = _table(
    "service_version",
    key("service"),
    key("generation", Integer),
    *must_all(Text, "network", "mode", "slo_budget", "created_by"),
    *must_all(Double, "slo_latency_ms", "slo_percentile"),
    *must_all(Double, "upscale_delay_s", "downscale_delay_s"),
    *must_all(Double, "priority", "accuracy_floor"),
    Column("survive", Text),
    Column("survive_share", Double),
    *must_all(Integer, "min_replicas", "buffer_replicas"),
    Column("max_replicas", Integer),
    Column("allowed_gpu_types", TEXTS),
    must("excluded_gpu_types", TEXTS),
    *must_all(JSON, "variants", "labels", "annotations"),
    must("created_at", TIME),
    must("catalogue_revision", BigInteger),
    must("anti_affinity", TEXTS),
    Column("llm", JSON),
)

# A new version for each change: every plan names the version that it was made under.
policy = _table(
    "policy",
    key("version", Integer),
    *must_all(Text, "policy", "mode", "approve", "objective", "survive", "created_by"),
    *must_all(Boolean, "paused", "learning", "approve_switch"),
    *must_all(
        Double,
        "period_s",
        "energy_price_usd_per_kwh",
        "carbon_price_usd_per_t",
        "migration_cost_usd_per_hour",
        "target_attainment",
        "survive_share",
        "stale_after_s",
        "solve_seconds",
        "solve_work",
        "window_s",
        "fit_quantile",
        "start_price",
        "min_dwell_s",
    ),
    must("carbon_g_per_kwh", ARRAY(Double)),
    must("max_replicas_per_gpu", Integer),
    must("seed", BigInteger),
    Column("governor", Text),
    Column("power_budget_w", Double),
    must("groups", JSON),
    must("parameters", JSON),
    must("created_at", TIME),
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
    # Only a hash: a reader of the table cannot log in with what stands there.
    must("sha256", LargeBinary),
    must("scope", Text),
    Column("projects", TEXTS),
    must("created_at", TIME),
    *may_all(TIME, "expires_at", "last_used_at", "revoked_at", "rotated_at"),
    *may_all(Text, "node", "root"),
    Column("uses_left", Integer),
    Column("person", Text),
)

session = _table(
    "session",
    Column("sha256", LargeBinary, primary_key=True),
    must("token", Text),
    *must_all(TIME, "created_at", "expires_at"),
)

# The same key may come from two people and for two endpoints: all three make the key.
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
    *must_all(Text, "actor", "kind", "subject", "reason"),
    Column("plan_id", BigInteger),
    Column("request_id", Text),
    *may_all(JSON, "before", "after"),
)

task = _table(
    "task",
    key("id"),
    *must_all(Text, "name", "project", "kind", "network", "submitted_by"),
    *must_all(Integer, "run", "generation", "batch", "starts", "swaps"),
    must("iterations", BigInteger),
    *must_all(JSON, "labels", "annotations", "layers", "variants", "stated"),
    *must_all(Double, "accuracy_floor", "priority", "weight"),
    *must_all(Double, "done_iterations", "iteration_ms", "ran_s"),
    *may_all(Double, "memory_mib", "deadline_after_s", "sm_percent"),
    *may_all(Text, "gpu", "state"),
    must("submitted_at", TIME),
    *may_all(
        TIME, "cancelled_at", "deleted_at", "last_ran_at", "finished_at", "starved_at"
    ),
)

plan = _table(
    "plan",
    key("id", BigInteger),
    must("at", TIME),
    *must_all(Text, "state", "policy", "method", "reason"),
    *may_all(Text, "solution"),
    must("policy_version", Integer),
    must("catalogue_revision", BigInteger),
    *may_all(BigInteger, "generation", "parent", "replaced_by"),
    # Hashes into plan_content.
    must("content", LargeBinary),
    Column("problem", LargeBinary),
    Column("prices", JSON),
    Column("bound", LargeBinary),
    Column("dropped_gpus", TEXTS),
    must("cost_usd_per_hour", Numeric),
    *may_all(Double, "lower_bound_usd_per_hour", "gap_percent"),
    *may_all(Double, "served_weight", "served_weight_upper_bound"),
    must("seconds", Double),
    must("messages", TEXTS),
)

plan_content = _table(
    "plan_content",
    Column("sha256", LargeBinary, primary_key=True),
    must("body", LargeBinary),
    must("used_at", TIME),
)

plan_step = _table(
    "plan_step",
    key("plan_id", BigInteger),
    key("position", Integer),
    *must_all(Text, "technique", "method", "status"),
    *may_all(Double, "objective", "bound"),
    must("seconds", Double),
    must("messages", TEXTS),
)

plan_violation = _table(
    "plan_violation",
    key("plan_id", BigInteger),
    key("position", Integer),
    *must_all(Text, "rule", "severity", "place", "detail"),
)

# One row per service, moment and method: that of the newest plan.
demand = _table(
    "demand",
    key("service"),
    Column("at", TIME, primary_key=True),
    must("arrival_rate_rps", Double),
    key("method"),
    Column("plan_id", BigInteger),
    *may_all(Double, "low_rps", "high_rps"),
)

forecast_choice = _table(
    "forecast_choice",
    key("service"),
    must("technique", Text),
    must("seasons", JSON),
    *must_all(Double, "margin", "room_factor", "floor_rps", "burst_rps"),
    *may_all(TIME, "burst_at"),
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
    must("digest", Text),
    must("created_at", TIME),
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
    # What the audit has said already, and for which period: a budget that stays spent is reported once.
    *must_all(Integer, "told_percent", "degrade_step"),
    *may_all(TIME, "told_since", "degrade_at"),
)

note = _table(
    "note",
    key("kind"),
    key("name"),
    *must_all(JSON, "labels", "annotations", "spec"),
)
