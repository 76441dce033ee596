-- What is decided: the operator's policy, plans with all that led to them, the target's history, commands to nodes.

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
    created_by text NOT NULL,
    fit_quantile percentile NOT NULL DEFAULT 0.9,
    learning boolean NOT NULL DEFAULT true,
    hysteresis double precision NOT NULL DEFAULT 0.03 CHECK (hysteresis BETWEEN 0 AND 1),
    move_budget double precision NOT NULL DEFAULT 0.1 CHECK (move_budget BETWEEN 0 AND 1),
    min_dwell_s double precision NOT NULL DEFAULT 60 CHECK (min_dwell_s BETWEEN 0 AND 86400),
    governor text CHECK (char_length(governor) BETWEEN 1 AND 63),
    groups jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(groups) = 'array'),
    approve_switch boolean NOT NULL DEFAULT false,
    power_budget_w double precision CHECK (power_budget_w > 0 AND power_budget_w <= 1e9),
    carbon_price_usd_per_t double precision NOT NULL DEFAULT 0
        CHECK (carbon_price_usd_per_t >= 0 AND carbon_price_usd_per_t <= 1e9),
    carbon_g_per_kwh double precision[] NOT NULL DEFAULT '{}'
        CHECK (cardinality(carbon_g_per_kwh) IN (0, 1, 24) AND 0 <= ALL (carbon_g_per_kwh))
);
COMMENT ON TABLE policy IS
    'What the operator wants of the control loop; the highest version holds, no row is ever changed.';
COMMENT ON COLUMN policy.fit_quantile IS 'Execution times are planned at this quantile of what they may be.';
COMMENT ON COLUMN policy.learning IS
    'Whether served latencies correct the operating points that are planned with.';
COMMENT ON COLUMN policy.hysteresis IS
    'Fraction of the cost that a rearrangement must save beyond the price of its starts.';
COMMENT ON COLUMN policy.move_budget IS
    'Replicas that one plan may start to save cost, as a fraction of those that run.';
COMMENT ON COLUMN policy.min_dwell_s IS
    'Seconds for which an arrangement stays before it may be rearranged to save cost.';
COMMENT ON COLUMN policy.governor IS
    'Who turns clocks and batches on the nodes within the plan; null: nobody.';
COMMENT ON COLUMN policy.groups IS
    'Services with a policy and GPUs of their own, in the order in which they are decided: name, policy, '
    'projects, labels as [name, value] pairs, mode.';
COMMENT ON COLUMN policy.approve_switch IS
    'Whether the first plan of another policy than that of the plan in force waits for a person.';
COMMENT ON COLUMN policy.power_budget_w IS
    'Watts that all used GPUs together may draw, idle watts included; null: no limit.';
COMMENT ON COLUMN policy.carbon_price_usd_per_t IS
    'Price of a tonne of carbon dioxide, which plans add to that of energy.';
COMMENT ON COLUMN policy.carbon_g_per_kwh IS
    'Grams that the grid emits per kWh: one figure, or one per hour of the day in UTC; empty: not known.';

CREATE TABLE policy_memory (
    policy text PRIMARY KEY,
    memory jsonb
);
COMMENT ON TABLE policy_memory IS 'What a policy wrote down at its last tick.';

CREATE TABLE actor (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    fleet_fingerprint text NOT NULL CHECK (fleet_fingerprint ~ '^[0-9a-f]{16}$'),
    created_at timestamptz NOT NULL,
    notes text NOT NULL DEFAULT '',
    weights bytea NOT NULL CHECK (octet_length(weights) BETWEEN 1 AND 50000000)
);
CREATE INDEX actor_of_fleet ON actor (fleet_fingerprint, id);
COMMENT ON TABLE actor IS
    'Trained actors of policy inss; the newest of a fleet counts. The fingerprint names the fleet''s GPU '
    'types and how many GPUs there are of each.';

CREATE TABLE archive (
    sha256 bytea PRIMARY KEY CHECK (octet_length(sha256) = 32),
    body bytea NOT NULL
);
COMMENT ON TABLE archive IS
    'Parts of problems that many plans share (capacity law, operating points): zlib of JSON, by its hash.';

CREATE TABLE plan (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL,
    state text NOT NULL CHECK (state IN
        ('proposed', 'approved', 'target', 'superseded', 'refused', 'rejected', 'kept', 'lost')),
    policy text NOT NULL,
    policy_version integer NOT NULL,
    catalogue_revision bigint NOT NULL,
    generation bigint CHECK (generation >= 1),
    parent bigint CHECK (parent >= 0),
    document jsonb NOT NULL,
    bound jsonb,
    problem bytea,
    status text NOT NULL CHECK (status IN ('optimal', 'feasible', 'greedy', 'kept')),
    cost_usd_per_hour numeric NOT NULL CHECK (cost_usd_per_hour >= 0 AND cost_usd_per_hour < 'Infinity'),
    lower_bound_usd_per_hour double precision,
    gap_percent double precision,
    seconds amount NOT NULL,
    method text NOT NULL,
    messages text[] NOT NULL DEFAULT '{}',
    reason text NOT NULL DEFAULT '',
    prices jsonb,
    CHECK ((bound IS NULL) = (generation IS NULL) AND (bound IS NULL) = (parent IS NULL)),
    CHECK (state NOT IN ('approved', 'target', 'superseded') OR bound IS NOT NULL)
);
CREATE UNIQUE INDEX plan_in_force ON plan ((state)) WHERE state = 'target';
CREATE INDEX plan_by_state ON plan (state, id);
CREATE INDEX plan_by_time ON plan (at);
COMMENT ON TABLE plan IS 'One decision with everything that led to it.';
COMMENT ON COLUMN plan.document IS 'The plan with its report, as the contract''s JSON.';
COMMENT ON COLUMN plan.problem IS
    'The input: zlib of the contract''s JSON, where shared parts are hashes into archive.';

CREATE TABLE plan_step (
    plan_id bigint NOT NULL REFERENCES plan ON DELETE CASCADE,
    position integer NOT NULL CHECK (position >= 0),
    technique text NOT NULL,
    method text NOT NULL,
    status text NOT NULL CHECK (status IN ('optimal', 'feasible', 'infeasible', 'time_limit', 'unknown', 'failed')),
    objective double precision,
    bound double precision,
    seconds amount NOT NULL,
    messages text[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (plan_id, position)
);
COMMENT ON TABLE plan_step IS 'What each technique of the policy did for a plan.';

CREATE TABLE plan_violation (
    plan_id bigint NOT NULL REFERENCES plan ON DELETE CASCADE,
    position integer NOT NULL CHECK (position >= 0),
    rule text NOT NULL,
    severity text NOT NULL CHECK (severity IN ('physical', 'promise')),
    place text NOT NULL,
    detail text NOT NULL,
    PRIMARY KEY (plan_id, position)
);
COMMENT ON TABLE plan_violation IS 'Rules that a plan breaks, as the checker found them.';

CREATE TABLE demand (
    service resource_name NOT NULL,
    at timestamptz NOT NULL,
    arrival_rate_rps amount NOT NULL,
    method text NOT NULL,
    plan_id bigint REFERENCES plan ON DELETE CASCADE,
    low_rps double precision,
    high_rps double precision,
    PRIMARY KEY (service, at, method)
);
CREATE INDEX demand_by_time ON demand (at);
CREATE INDEX demand_by_plan ON demand (plan_id);
COMMENT ON TABLE demand IS
    'Arrival rates that plans were made for. Method: the technique of the forecast (forecast in rows of older '
    'programs), reserve (more than the forecast, for bursts), kept (nothing was heard: the planned rate '
    'stays), or stated (by a person).';
COMMENT ON COLUMN demand.low_rps IS '5th percentile of the forecast behind it; null where it is no forecast.';
COMMENT ON COLUMN demand.high_rps IS
    '95th percentile of the forecast behind it; null where it is no forecast.';

CREATE TABLE plan_gpu (
    plan_id bigint NOT NULL REFERENCES plan ON DELETE CASCADE,
    gpu resource_name NOT NULL,
    node resource_name NOT NULL,
    -- Prices go with their GPU type, and the bill with the prices: types that were billed stay.
    gpu_type resource_name NOT NULL CONSTRAINT plan_gpu_type REFERENCES gpu_type,
    clock_mhz positive_amount NOT NULL,
    power_cap_w amount NOT NULL,
    memory_mib amount NOT NULL,
    idle_w amount NOT NULL,
    PRIMARY KEY (plan_id, gpu)
);
COMMENT ON TABLE plan_gpu IS 'GPUs that a target uses, with their capacity when it was pushed.';

CREATE TABLE plan_replica (
    plan_id bigint NOT NULL,
    gpu resource_name NOT NULL,
    replica resource_name NOT NULL,
    service resource_name NOT NULL,
    project resource_name NOT NULL,
    network resource_name NOT NULL,
    sm_percent numeric NOT NULL CHECK (sm_percent > 0 AND sm_percent <= 100),
    batch integer NOT NULL CHECK (batch >= 1),
    memory_mib numeric NOT NULL CHECK (memory_mib >= 0 AND memory_mib < 'Infinity'),
    power_w amount NOT NULL,
    arrival_rate_rps amount NOT NULL,
    PRIMARY KEY (plan_id, gpu, replica),
    FOREIGN KEY (plan_id, gpu) REFERENCES plan_gpu ON DELETE CASCADE
);
COMMENT ON TABLE plan_replica IS 'Replicas that a target runs.';
COMMENT ON COLUMN plan_replica.power_w IS
    'Watts above idle by the profile in force at the push; 0 where there was none.';

CREATE TABLE plan_task (
    plan_id bigint NOT NULL,
    gpu resource_name NOT NULL,
    task resource_name NOT NULL,
    name resource_name NOT NULL,
    project resource_name NOT NULL,
    kind text NOT NULL,
    network resource_name NOT NULL,
    sm_percent numeric NOT NULL CHECK (sm_percent > 0 AND sm_percent <= 100),
    batch integer NOT NULL CHECK (batch >= 1),
    memory_mib numeric NOT NULL CHECK (memory_mib >= 0 AND memory_mib < 'Infinity'),
    power_w amount NOT NULL,
    PRIMARY KEY (plan_id, gpu, task),
    FOREIGN KEY (plan_id, gpu) REFERENCES plan_gpu ON DELETE CASCADE
);
CREATE INDEX plan_task_by_task ON plan_task (task);
COMMENT ON TABLE plan_task IS 'Tasks that a target runs; those that it swaps out hold nothing of a GPU.';
COMMENT ON COLUMN plan_task.power_w IS
    'Watts above idle by the profile in force at the push; 0 where there was none.';

CREATE TABLE target (
    generation bigint PRIMARY KEY CHECK (generation >= 1),
    plan_id bigint NOT NULL UNIQUE REFERENCES plan,
    valid tstzrange NOT NULL CHECK (NOT isempty(valid)),
    EXCLUDE USING gist (valid WITH &&)
);
CREATE UNIQUE INDEX target_open ON target ((upper_inf(valid))) WHERE upper_inf(valid);
COMMENT ON TABLE target IS 'Which plan was in force when; the open period is the target.';

CREATE TABLE command (
    node resource_name NOT NULL REFERENCES node ON DELETE CASCADE,
    generation bigint NOT NULL CHECK (generation >= 1),
    body bytea NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (node, generation)
);
COMMENT ON TABLE command IS 'The complete wanted state of a node, by generation; body is the wire''s JSON.';

CREATE TABLE acknowledgement (
    node resource_name NOT NULL REFERENCES node ON DELETE CASCADE,
    generation bigint NOT NULL CHECK (generation >= 0),
    status text NOT NULL CHECK (status IN ('applied', 'applying', 'refused', 'failed')),
    detail text NOT NULL DEFAULT '',
    at timestamptz NOT NULL,
    PRIMARY KEY (node, generation)
);
COMMENT ON TABLE acknowledgement IS 'What became of a command: the last word of the node on it.';
