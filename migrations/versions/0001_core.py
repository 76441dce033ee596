"""Catalogue, inventory, services, policy, audit and access."""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BASICS = """
CREATE EXTENSION IF NOT EXISTS btree_gist;

CREATE DOMAIN resource_name AS text CHECK (char_length(VALUE) BETWEEN 1 AND 253);
-- NaN sorts above infinity in PostgreSQL, so the upper limit refuses it too.
CREATE DOMAIN amount AS double precision CHECK (VALUE >= 0 AND VALUE < 'Infinity');
CREATE DOMAIN positive_amount AS double precision CHECK (VALUE > 0 AND VALUE < 'Infinity');
CREATE DOMAIN percentile AS double precision CHECK (VALUE >= 0.5 AND VALUE <= 0.999);
CREATE DOMAIN loop_mode AS text CHECK (VALUE IN ('off', 'advise', 'approve', 'auto'));

CREATE TABLE cluster (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    catalogue_revision bigint NOT NULL DEFAULT 1,
    profile_revision bigint NOT NULL DEFAULT 1,
    target_generation bigint NOT NULL DEFAULT 0 CHECK (target_generation >= 0)
);
INSERT INTO cluster DEFAULT VALUES;
COMMENT ON TABLE cluster IS
    'The one row that decisions are serialised on: revisions of what is known, generation of what is wanted.';

CREATE TABLE leader (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    epoch bigint NOT NULL DEFAULT 0,
    holder text NOT NULL DEFAULT ''
);
INSERT INTO leader DEFAULT VALUES;
COMMENT ON TABLE leader IS 'Fencing epoch of the leading controller; grows with every change of leader.';

CREATE TABLE project (
    name resource_name PRIMARY KEY,
    labels jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(labels) = 'object'),
    created_at timestamptz NOT NULL
);
INSERT INTO project (name, created_at) VALUES ('default', transaction_timestamp());
COMMENT ON TABLE project IS 'A tenant: everything that is submitted belongs to one.';
"""

INVENTORY = """
CREATE TABLE gpu_type (
    name resource_name PRIMARY KEY,
    memory_mib positive_amount NOT NULL,
    sm_percent_step positive_amount NOT NULL CHECK (sm_percent_step <= 100),
    idle_w amount NOT NULL,
    power_cap_w positive_amount NOT NULL CHECK (power_cap_w >= idle_w),
    clocks_mhz double precision[] NOT NULL CHECK (cardinality(clocks_mhz) > 0 AND 0 < ALL (clocks_mhz)),
    launch_per_neighbour amount NOT NULL DEFAULT 0,
    launch_base amount NOT NULL DEFAULT 0,
    provenance text NOT NULL DEFAULT '',
    labels jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(labels) = 'object'),
    created_at timestamptz NOT NULL
);
COMMENT ON TABLE gpu_type IS 'One kind of GPU: what it can carry.';

CREATE TABLE gpu_price (
    gpu_type resource_name NOT NULL REFERENCES gpu_type ON DELETE CASCADE,
    valid tstzrange NOT NULL CHECK (NOT isempty(valid)),
    price_usd_per_hour numeric(12, 6) NOT NULL CHECK (price_usd_per_hour > 0 AND price_usd_per_hour < 1000000),
    PRIMARY KEY (gpu_type, valid),
    EXCLUDE USING gist ((gpu_type::text) WITH =, valid WITH &&)
);
COMMENT ON TABLE gpu_price IS 'Price of one whole GPU by period; the periods of a type never overlap.';

CREATE TABLE node (
    id resource_name PRIMARY KEY,
    cordoned boolean NOT NULL DEFAULT false,
    labels jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(labels) = 'object'),
    created_at timestamptz NOT NULL,
    agent_version text NOT NULL DEFAULT '',
    boot text,
    last_seen_at timestamptz,
    last_window_end timestamptz,
    observed_generation bigint NOT NULL DEFAULT 0 CHECK (observed_generation >= 0),
    clock_skew_s double precision NOT NULL DEFAULT 0,
    problems text[] NOT NULL DEFAULT '{}'
);
COMMENT ON TABLE node IS 'One machine with GPUs and an agent, and what its agent last said of itself.';

CREATE TABLE gpu (
    id resource_name PRIMARY KEY,
    node resource_name NOT NULL REFERENCES node ON DELETE CASCADE,
    gpu_type resource_name NOT NULL REFERENCES gpu_type,
    index integer NOT NULL CHECK (index >= 0),
    healthy boolean NOT NULL DEFAULT true,
    cordoned boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL,
    UNIQUE (node, index),
    -- Observations name GPUs by it without asking this table.
    CHECK (id = node || '/gpu-' || index)
);
CREATE INDEX gpu_by_type ON gpu (gpu_type);
COMMENT ON TABLE gpu IS 'One physical GPU.';

CREATE TABLE network (
    name resource_name PRIMARY KEY,
    description text NOT NULL DEFAULT '',
    labels jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(labels) = 'object'),
    created_at timestamptz NOT NULL
);
COMMENT ON TABLE network IS 'A neural network that services serve.';

CREATE TABLE profile (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    network resource_name NOT NULL REFERENCES network ON DELETE CASCADE,
    gpu_type resource_name NOT NULL REFERENCES gpu_type ON DELETE CASCADE,
    version integer NOT NULL CHECK (version >= 1),
    is_current boolean NOT NULL DEFAULT true,
    sensitivity amount NOT NULL,
    provenance text NOT NULL CHECK (provenance IN ('measured', 'scaled', 'estimated')),
    source text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL,
    UNIQUE (network, gpu_type, version)
);
CREATE UNIQUE INDEX profile_current ON profile (network, gpu_type) WHERE is_current;
COMMENT ON TABLE profile IS 'One version of the operating points of a network on a GPU type.';

CREATE TABLE profile_point (
    profile_id bigint NOT NULL REFERENCES profile ON DELETE CASCADE,
    sm_percent positive_amount NOT NULL CHECK (sm_percent <= 100),
    batch integer NOT NULL CHECK (batch >= 1),
    clock_mhz positive_amount NOT NULL,
    transfer_ms amount NOT NULL,
    launch_ms amount NOT NULL,
    run_ms amount NOT NULL,
    memory_mib amount NOT NULL,
    power_w amount NOT NULL,
    pressure amount NOT NULL,
    PRIMARY KEY (profile_id, sm_percent, batch, clock_mhz),
    CHECK (transfer_ms + launch_ms + run_ms > 0)
);
COMMENT ON TABLE profile_point IS 'One operating point: times of one whole batch, alone on the GPU.';
"""

SERVICES = """
CREATE TABLE service (
    name resource_name PRIMARY KEY,
    project resource_name NOT NULL REFERENCES project,
    generation integer NOT NULL CHECK (generation >= 1),
    created_at timestamptz NOT NULL,
    deleted_at timestamptz
);
CREATE INDEX service_by_project ON service (project);
COMMENT ON TABLE service IS 'An inference service; its specification is the service_version of its generation.';

CREATE TABLE service_version (
    service resource_name NOT NULL REFERENCES service ON DELETE CASCADE,
    generation integer NOT NULL CHECK (generation >= 1),
    network resource_name NOT NULL REFERENCES network,
    slo_latency_ms positive_amount NOT NULL,
    slo_percentile percentile NOT NULL,
    min_replicas integer NOT NULL DEFAULT 0 CHECK (min_replicas >= 0),
    max_replicas integer CHECK (max_replicas >= 1 AND max_replicas >= min_replicas),
    upscale_delay_s amount NOT NULL DEFAULT 0,
    downscale_delay_s amount NOT NULL DEFAULT 60,
    buffer_replicas integer NOT NULL DEFAULT 0 CHECK (buffer_replicas >= 0),
    priority positive_amount NOT NULL DEFAULT 1,
    allowed_gpu_types text[],
    excluded_gpu_types text[] NOT NULL DEFAULT '{}',
    mode loop_mode NOT NULL DEFAULT 'auto',
    labels jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(labels) = 'object'),
    annotations jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(annotations) = 'object'),
    created_at timestamptz NOT NULL,
    created_by text NOT NULL,
    PRIMARY KEY (service, generation)
);
COMMENT ON TABLE service_version IS 'What a service asked for, one row per generation; never changed.';
-- Deferred, because a service and its first version refer to each other.
ALTER TABLE service ADD CONSTRAINT service_has_version FOREIGN KEY (name, generation)
    REFERENCES service_version (service, generation) DEFERRABLE INITIALLY DEFERRED;

CREATE TABLE service_status (
    service resource_name PRIMARY KEY REFERENCES service ON DELETE CASCADE,
    observed_generation integer NOT NULL CHECK (observed_generation >= 1),
    conditions jsonb NOT NULL CHECK (jsonb_typeof(conditions) = 'array'),
    updated_at timestamptz NOT NULL
);
COMMENT ON TABLE service_status IS 'Conditions of a service as the control loop last judged them.';

CREATE TABLE policy (
    version integer PRIMARY KEY CHECK (version >= 1),
    policy text NOT NULL,
    mode loop_mode NOT NULL,
    paused boolean NOT NULL,
    period_s positive_amount NOT NULL,
    objective text NOT NULL CHECK (objective IN ('min_cost', 'max_goodput')),
    energy_price_usd_per_kwh amount NOT NULL,
    max_replicas_per_gpu integer NOT NULL CHECK (max_replicas_per_gpu >= 1),
    migration_cost_usd_per_hour amount NOT NULL,
    headroom positive_amount NOT NULL CHECK (headroom >= 1),
    stale_after_s positive_amount NOT NULL,
    solve_seconds positive_amount NOT NULL,
    solve_work positive_amount NOT NULL,
    seed bigint NOT NULL CHECK (seed >= 0),
    window_s positive_amount NOT NULL,
    created_at timestamptz NOT NULL,
    created_by text NOT NULL
);
COMMENT ON TABLE policy IS
    'What the operator wants of the control loop; the highest version holds, no row is ever changed.';

CREATE TABLE policy_memory (
    policy text PRIMARY KEY,
    memory jsonb
);
COMMENT ON TABLE policy_memory IS 'What a policy wrote down at its last tick.';
"""

ACCESS = """
CREATE TABLE token (
    id text PRIMARY KEY,
    name resource_name NOT NULL,
    sha256 bytea NOT NULL UNIQUE CHECK (octet_length(sha256) = 32),
    scope text NOT NULL CHECK (scope IN ('viewer', 'operator', 'admin', 'agent')),
    projects text[],
    created_at timestamptz NOT NULL,
    expires_at timestamptz CHECK (expires_at > created_at),
    last_used_at timestamptz,
    revoked_at timestamptz
);
COMMENT ON TABLE token IS 'Bearer tokens; only their hash is kept. projects null = every project.';

CREATE TABLE idempotency (
    key text NOT NULL CHECK (char_length(key) BETWEEN 1 AND 255),
    actor text NOT NULL,
    endpoint text NOT NULL,
    request_sha256 bytea NOT NULL CHECK (octet_length(request_sha256) = 32),
    status integer,
    body bytea,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (key, actor, endpoint),
    CHECK ((status IS NULL) = (body IS NULL))
);
CREATE INDEX idempotency_by_age ON idempotency (created_at);
COMMENT ON TABLE idempotency IS 'Answers to requests with an Idempotency-Key; status null = still running.';

CREATE TABLE event (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL,
    actor text NOT NULL,
    kind text NOT NULL CHECK (kind ~ '^[A-Z][A-Za-z]+$'),
    subject text NOT NULL,
    reason text NOT NULL DEFAULT '',
    plan_id bigint,
    request_id text,
    before jsonb,
    after jsonb
);
CREATE INDEX event_by_subject ON event (subject, id);
CREATE INDEX event_by_time ON event USING brin (at);
COMMENT ON TABLE event IS 'The audit: every write and every automatic decision; rows are never changed or deleted.';
"""

TRIGGERS = """
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of % are never changed or deleted', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER event_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON event
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER policy_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON policy
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER service_version_append_only BEFORE UPDATE ON service_version
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE FUNCTION wake_loop() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('plimsoll_wake', TG_TABLE_NAME);
    RETURN NULL;
END $$;
CREATE TRIGGER policy_wakes AFTER INSERT ON policy FOR EACH STATEMENT EXECUTE FUNCTION wake_loop();

CREATE FUNCTION bump_catalogue() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE cluster SET catalogue_revision = catalogue_revision + 1,
                       profile_revision = profile_revision + (TG_TABLE_NAME = 'profile')::int;
    PERFORM pg_notify('plimsoll_wake', TG_TABLE_NAME);
    RETURN NULL;
END $$;
"""

# What a plan was made from; a change of any of it makes the plan too old to push.
REVISED = {
    "gpu_type": "INSERT OR UPDATE OR DELETE",
    "gpu_price": "INSERT OR UPDATE OR DELETE",
    "gpu": "INSERT OR UPDATE OR DELETE",
    "node": "INSERT OR UPDATE OF cordoned OR DELETE",
    "profile": "INSERT OR UPDATE OR DELETE",
    "service": "INSERT OR UPDATE OR DELETE",
}

TABLES = (
    "event idempotency token policy_memory policy service_status service_version service profile_point profile "
    "network gpu node gpu_price gpu_type project leader cluster"
)


def upgrade() -> None:
    """Make the core tables."""
    for part in (BASICS, INVENTORY, SERVICES, ACCESS, TRIGGERS):
        op.execute(part)
    for table, changes in REVISED.items():
        op.execute(
            f"CREATE TRIGGER {table}_revises AFTER {changes} ON {table} FOR EACH ROW EXECUTE FUNCTION bump_catalogue()"
        )


def downgrade() -> None:
    """Remove them. The extension stays, since others may use it."""
    op.execute(f"DROP TABLE {', '.join(TABLES.split())} CASCADE")
    op.execute("DROP FUNCTION refuse_change, wake_loop, bump_catalogue")
    op.execute("DROP DOMAIN resource_name, amount, positive_amount, percentile, loop_mode")
