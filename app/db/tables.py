"""The tables as SQLAlchemy sees them: names and types of columns, for building statements.

The schema itself, with its constraints, is made by `migrations/`; a test compares the two.
"""

from typing import Any, TypeAlias, TypeVar

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
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP, TSTZRANGE
from sqlalchemy.types import TypeEngine

metadata = MetaData()

AnyRow: TypeAlias = Row[*tuple[Any, ...]]
"""A row of any columns; it is turned into a noun at once."""

TIME = TIMESTAMP(timezone=True)
# JSON null and SQL null are one and the same here.
JSON = JSONB(none_as_null=True)
TEXTS = ARRAY(Text)


Value = TypeVar("Value")


def _key(name: str, kind: type[Text] | type[Integer] = Text) -> Column[Any]:
    return Column(name, kind, primary_key=True)


def _must(name: str, kind: TypeEngine[Value] | type[TypeEngine[Value]]) -> Column[Value]:
    return Column(name, kind, nullable=False)


cluster = Table(
    "cluster",
    metadata,
    Column("singleton", Boolean, primary_key=True),
    _must("catalogue_revision", BigInteger),
    _must("profile_revision", BigInteger),
    _must("target_generation", BigInteger),
    _must("fit_revision", BigInteger),
)

project = Table("project", metadata, _key("name"), _must("labels", JSON), _must("created_at", TIME))

gpu_type = Table(
    "gpu_type",
    metadata,
    _key("name"),
    _must("memory_mib", Double),
    _must("sm_percent_step", Double),
    _must("idle_w", Double),
    _must("power_cap_w", Double),
    _must("clocks_mhz", ARRAY(Double)),
    *(_must(name, Double) for name in ("launch_per_neighbour", "launch_base")),
    _must("provenance", Text),
    _must("labels", JSON),
    _must("created_at", TIME),
)

gpu_price = Table(
    "gpu_price",
    metadata,
    _key("gpu_type"),
    Column("valid", TSTZRANGE, primary_key=True),
    _must("price_usd_per_hour", Numeric(12, 6)),
)

node = Table(
    "node",
    metadata,
    _key("id"),
    _must("cordoned", Boolean),
    _must("labels", JSON),
    _must("created_at", TIME),
    _must("agent_version", Text),
    Column("boot", Text),
    Column("last_seen_at", TIME),
    Column("last_window_end", TIME),
    _must("observed_generation", BigInteger),
    _must("clock_skew_s", Double),
    _must("problems", TEXTS),
    Column("power_cap_w", Double),
    _must("repartition", ARRAY(Integer)),
    _must("metrics_address", Text),
)

gpu = Table(
    "gpu",
    metadata,
    _key("id"),
    _must("node", Text),
    _must("gpu_type", Text),
    _must("index", Integer),
    _must("healthy", Boolean),
    _must("cordoned", Boolean),
    _must("created_at", TIME),
)

network = Table(
    "network",
    metadata,
    _key("name"),
    _must("description", Text),
    _must("labels", JSON),
    _must("created_at", TIME),
)

profile = Table(
    "profile",
    metadata,
    _key("id", BigInteger),
    _must("network", Text),
    _must("gpu_type", Text),
    _must("version", Integer),
    _must("is_current", Boolean),
    _must("sensitivity", Double),
    _must("provenance", Text),
    _must("source", Text),
    _must("created_at", TIME),
)

service = Table(
    "service",
    metadata,
    _key("name"),
    _must("project", Text),
    _must("generation", Integer),
    _must("created_at", TIME),
    Column("deleted_at", TIME),
)

service_version = Table(
    "service_version",
    metadata,
    _key("service"),
    _key("generation", Integer),
    _must("network", Text),
    _must("slo_latency_ms", Double),
    _must("slo_percentile", Double),
    _must("min_replicas", Integer),
    Column("max_replicas", Integer),
    _must("upscale_delay_s", Double),
    _must("downscale_delay_s", Double),
    _must("buffer_replicas", Integer),
    _must("priority", Double),
    Column("allowed_gpu_types", TEXTS),
    _must("excluded_gpu_types", TEXTS),
    _must("mode", Text),
    _must("variants", JSON),
    _must("accuracy_floor", Double),
    _must("labels", JSON),
    _must("annotations", JSON),
    _must("created_at", TIME),
    _must("created_by", Text),
)

policy = Table(
    "policy",
    metadata,
    _key("version", Integer),
    _must("policy", Text),
    _must("mode", Text),
    _must("paused", Boolean),
    _must("period_s", Double),
    _must("objective", Text),
    _must("energy_price_usd_per_kwh", Double),
    _must("carbon_price_usd_per_t", Double),
    _must("carbon_g_per_kwh", ARRAY(Double)),
    _must("max_replicas_per_gpu", Integer),
    _must("migration_cost_usd_per_hour", Double),
    _must("headroom", Double),
    _must("stale_after_s", Double),
    _must("solve_seconds", Double),
    _must("solve_work", Double),
    _must("seed", BigInteger),
    _must("window_s", Double),
    _must("fit_quantile", Double),
    _must("learning", Boolean),
    _must("hysteresis", Double),
    _must("move_budget", Double),
    _must("min_dwell_s", Double),
    Column("governor", Text),
    Column("power_budget_w", Double),
    _must("groups", JSON),
    _must("approve_switch", Boolean),
    _must("created_at", TIME),
    _must("created_by", Text),
)

policy_memory = Table("policy_memory", metadata, _key("policy"), Column("memory", JSON))

actor = Table(
    "actor",
    metadata,
    _key("id", BigInteger),
    _must("fleet_fingerprint", Text),
    _must("created_at", TIME),
    _must("notes", Text),
    _must("weights", LargeBinary),
)

token = Table(
    "token",
    metadata,
    _key("id"),
    _must("name", Text),
    _must("sha256", LargeBinary),
    _must("scope", Text),
    Column("projects", TEXTS),
    _must("created_at", TIME),
    *(Column(name, TIME) for name in ("expires_at", "last_used_at", "revoked_at")),
)

session = Table(
    "session",
    metadata,
    Column("sha256", LargeBinary, primary_key=True),
    _must("token", Text),
    *(_must(name, TIME) for name in ("created_at", "expires_at")),
)

idempotency = Table(
    "idempotency",
    metadata,
    _key("key"),
    _key("actor"),
    _key("endpoint"),
    _must("request_sha256", LargeBinary),
    Column("status", Integer),
    Column("body", LargeBinary),
    _must("created_at", TIME),
)

event = Table(
    "event",
    metadata,
    _key("id", BigInteger),
    _must("at", TIME),
    _must("actor", Text),
    _must("kind", Text),
    _must("subject", Text),
    _must("reason", Text),
    Column("plan_id", BigInteger),
    Column("request_id", Text),
    *(Column(name, JSON) for name in ("before", "after")),
)

task = Table(
    "task",
    metadata,
    _key("id"),
    *(_must(name, Text) for name in ("name", "project", "kind", "network", "submitted_by")),
    *(_must(name, Integer) for name in ("run", "generation", "batch", "starts", "swaps")),
    _must("iterations", BigInteger),
    *(_must(name, JSON) for name in ("labels", "annotations", "layers", "variants", "stated")),
    *(_must(name, Double) for name in ("accuracy_floor", "priority", "weight")),
    *(_must(name, Double) for name in ("done_iterations", "iteration_ms", "ran_s")),
    *(Column(name, Double) for name in ("memory_mib", "deadline_after_s", "sm_percent")),
    *(Column(name, Text) for name in ("gpu", "state")),
    _must("submitted_at", TIME),
    *(Column(name, TIME) for name in ("cancelled_at", "deleted_at", "last_ran_at", "finished_at", "starved_at")),
)

plan = Table(
    "plan",
    metadata,
    _key("id", BigInteger),
    _must("at", TIME),
    _must("state", Text),
    _must("policy", Text),
    _must("policy_version", Integer),
    _must("catalogue_revision", BigInteger),
    Column("generation", BigInteger),
    Column("parent", BigInteger),
    _must("document", JSON),
    Column("bound", JSON),
    Column("problem", LargeBinary),
    _must("status", Text),
    _must("cost_usd_per_hour", Numeric),
    Column("lower_bound_usd_per_hour", Double),
    Column("gap_percent", Double),
    _must("seconds", Double),
    _must("method", Text),
    _must("messages", TEXTS),
    _must("reason", Text),
    Column("prices", JSON),
)

plan_step = Table(
    "plan_step",
    metadata,
    _key("plan_id", BigInteger),
    _key("position", Integer),
    _must("technique", Text),
    _must("method", Text),
    _must("status", Text),
    Column("objective", Double),
    Column("bound", Double),
    _must("seconds", Double),
    _must("messages", TEXTS),
)

plan_violation = Table(
    "plan_violation",
    metadata,
    _key("plan_id", BigInteger),
    _key("position", Integer),
    _must("rule", Text),
    _must("severity", Text),
    _must("place", Text),
    _must("detail", Text),
)

demand = Table(
    "demand",
    metadata,
    _key("service"),
    Column("at", TIME, primary_key=True),
    _must("arrival_rate_rps", Double),
    _key("method"),
    Column("plan_id", BigInteger),
    Column("low_rps", Double),
    Column("high_rps", Double),
)

forecast_choice = Table(
    "forecast_choice",
    metadata,
    _key("service"),
    _must("technique", Text),
    _must("seasons", JSON),
    _must("margin", Double),
    _must("reserve_rps", Double),
    _must("scores", JSON),
    _must("at", TIME),
)

target = Table(
    "target",
    metadata,
    _key("generation", BigInteger),
    _must("plan_id", BigInteger),
    _must("valid", TSTZRANGE),
)

command = Table(
    "command",
    metadata,
    _key("node"),
    _key("generation", BigInteger),
    _must("body", LargeBinary),
    _must("created_at", TIME),
)

acknowledgement = Table(
    "acknowledgement",
    metadata,
    _key("node"),
    _key("generation", BigInteger),
    _must("status", Text),
    _must("detail", Text),
    _must("at", TIME),
)

budget = Table(
    "budget",
    metadata,
    _key("name"),
    Column("project", Text),
    _must("period", Text),
    _must("limit_usd", Numeric),
    _must("action", Text),
    _must("created_at", TIME),
    _must("protected_priority", Double),
    *(_must(name, Integer) for name in ("told_percent", "degrade_step")),
    *(Column(name, TIME) for name in ("told_since", "degrade_at")),
)

note = Table(
    "note",
    metadata,
    _key("kind"),
    _key("name"),
    _must("labels", JSON),
    _must("annotations", JSON),
    _must("spec", JSON),
)
