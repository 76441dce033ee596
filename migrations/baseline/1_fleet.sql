-- What there is: GPU types with their prices, nodes and their GPUs, networks and their operating points.

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
    target_generation bigint NOT NULL DEFAULT 0 CHECK (target_generation >= 0),
    fit_revision bigint NOT NULL DEFAULT 1
);
INSERT INTO cluster DEFAULT VALUES;
COMMENT ON TABLE cluster IS
    'The one row that decisions are serialised on: revisions of what is known, generation of what is wanted.';
COMMENT ON COLUMN cluster.fit_revision IS 'Grows whenever some fit_health.planned changes.';

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
    problems text[] NOT NULL DEFAULT '{}',
    power_cap_w double precision CHECK (power_cap_w > 0 AND power_cap_w <= 1e9),
    repartition integer[] NOT NULL DEFAULT '{}',
    metrics_address text NOT NULL DEFAULT '' CHECK (length(metrics_address) <= 261)
);
COMMENT ON TABLE node IS 'One machine with GPUs and an agent, and what its agent last said of itself.';
COMMENT ON COLUMN node.power_cap_w IS
    'Watts that its used GPUs together may draw, idle watts included; null: no limit.';
COMMENT ON COLUMN node.repartition IS
    'Indices of its GPUs whose governor keeps its limits with no clock and batch that the plan allows.';
COMMENT ON COLUMN node.metrics_address IS 'host:port of its agent''s /metrics; empty: it has none.';

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
    latency_sigma amount,
    PRIMARY KEY (profile_id, sm_percent, batch, clock_mhz),
    CHECK (transfer_ms + launch_ms + run_ms > 0)
);
COMMENT ON TABLE profile_point IS 'One operating point: times of one whole batch, alone on the GPU.';
COMMENT ON COLUMN profile_point.latency_sigma IS
    'Standard deviation of ln(true / stated time); null: by the profile''s provenance.';
