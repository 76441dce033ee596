-- What is asked for: services, tasks, what they may cost, and what their manifests say besides.

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
    variants jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(variants) = 'array'),
    accuracy_floor double precision NOT NULL DEFAULT 0 CHECK (accuracy_floor >= 0 AND accuracy_floor <= 1),
    PRIMARY KEY (service, generation)
);
COMMENT ON TABLE service_version IS 'What a service asked for, one row per generation; never changed.';
COMMENT ON COLUMN service_version.variants IS
    'Networks that may serve it, as [network, accuracy] pairs, its own among them; empty: its own alone.';
COMMENT ON COLUMN service_version.accuracy_floor IS 'Variants below it are never chosen.';

-- Deferred, because a service and its first version refer to each other.
ALTER TABLE service ADD CONSTRAINT service_has_version FOREIGN KEY (name, generation)
    REFERENCES service_version (service, generation) DEFERRABLE INITIALLY DEFERRED;

-- Networks have no foreign key here: a task may run one that was never profiled.
CREATE TABLE task (
    id resource_name PRIMARY KEY,
    name resource_name NOT NULL,
    run integer NOT NULL CHECK (run >= 1),
    project resource_name NOT NULL REFERENCES project,
    generation integer NOT NULL CHECK (generation >= 1),
    labels jsonb NOT NULL CHECK (jsonb_typeof(labels) = 'object'),
    annotations jsonb NOT NULL CHECK (jsonb_typeof(annotations) = 'object'),
    kind text NOT NULL CHECK (kind IN ('training', 'offline')),
    network resource_name NOT NULL,
    layers jsonb NOT NULL CHECK (jsonb_typeof(layers) = 'array'),
    memory_mib positive_amount,
    variants jsonb NOT NULL CHECK (jsonb_typeof(variants) = 'array'),
    accuracy_floor amount NOT NULL CHECK (accuracy_floor <= 1),
    batch integer NOT NULL CHECK (batch >= 1),
    iterations bigint NOT NULL CHECK (iterations >= 1),
    deadline_after_s positive_amount,
    priority positive_amount NOT NULL,
    weight amount NOT NULL CHECK (weight <= 1),
    stated jsonb NOT NULL CHECK (jsonb_typeof(stated) = 'object'),
    submitted_at timestamptz NOT NULL,
    submitted_by text NOT NULL,
    cancelled_at timestamptz,
    deleted_at timestamptz,
    gpu resource_name,
    sm_percent positive_amount CHECK (sm_percent <= 100),
    state text CHECK (state IN ('starting', 'running', 'swapping', 'swapped', 'finished', 'failed')),
    done_iterations amount NOT NULL,
    iteration_ms amount NOT NULL DEFAULT 0,
    last_ran_at timestamptz,
    finished_at timestamptz,
    ran_s amount NOT NULL DEFAULT 0,
    starts integer NOT NULL DEFAULT 0 CHECK (starts >= 0),
    swaps integer NOT NULL DEFAULT 0 CHECK (swaps >= 0),
    starved_at timestamptz,
    UNIQUE (name, run),
    CHECK ((gpu IS NULL) = (sm_percent IS NULL)),
    CHECK (deleted_at IS NULL OR finished_at IS NOT NULL OR cancelled_at IS NOT NULL)
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX task_listed ON task (name) WHERE deleted_at IS NULL;
CREATE INDEX task_open ON task (id) WHERE finished_at IS NULL AND cancelled_at IS NULL;
CREATE INDEX task_by_submission ON task (submitted_at);
COMMENT ON TABLE task IS 'Training and offline work: as submitted, where the target wants it, how far it has come.';
COMMENT ON COLUMN task.id IS
    'What plans and nodes call it: its name, with a run number where an earlier task of that name was deleted.';
COMMENT ON COLUMN task.stated IS 'What its manifest says that the control loop has no use for.';
COMMENT ON COLUMN task.state IS 'As its node last reported from where the target wants it; null = not yet, or no more.';
COMMENT ON COLUMN task.starved_at IS 'When the audit last said that it waits for long; null = it has run since.';

CREATE TABLE budget (
    name resource_name PRIMARY KEY,
    project resource_name REFERENCES project ON DELETE CASCADE,
    period text NOT NULL CHECK (period IN ('hour', 'day', 'month')),
    limit_usd numeric NOT NULL CHECK (limit_usd > 0 AND limit_usd < 'Infinity'),
    action text NOT NULL CHECK (action IN ('warn', 'block_new', 'degrade')),
    created_at timestamptz NOT NULL,
    told_since timestamptz,
    told_percent integer NOT NULL DEFAULT 0 CHECK (told_percent IN (0, 80, 100)),
    protected_priority positive_amount NOT NULL DEFAULT 100,
    degrade_step integer NOT NULL DEFAULT 0 CHECK (degrade_step >= 0),
    degrade_at timestamptz
);
COMMENT ON TABLE budget IS 'What may be spent; nothing that runs is ever stopped for it.';
COMMENT ON COLUMN budget.project IS 'Null: the whole cluster, idle time included.';
COMMENT ON COLUMN budget.told_percent IS 'What the audit said last, in the period that began at told_since.';
COMMENT ON COLUMN budget.protected_priority IS
    'With action degrade: services of this priority and above lose nothing.';
COMMENT ON COLUMN budget.degrade_step IS
    'Steps down the ladder of priorities; 0: every service is planned for all its demand.';
COMMENT ON COLUMN budget.degrade_at IS 'When it went its last step, down or back.';

-- No foreign keys: kinds are kept in different tables, and a note without its object is never shown.
CREATE TABLE note (
    kind text NOT NULL CHECK (kind ~ '^[A-Z][A-Za-z]+$'),
    name text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 253),
    labels jsonb NOT NULL CHECK (jsonb_typeof(labels) = 'object'),
    annotations jsonb NOT NULL CHECK (jsonb_typeof(annotations) = 'object'),
    spec jsonb NOT NULL CHECK (jsonb_typeof(spec) = 'object'),
    PRIMARY KEY (kind, name)
);
COMMENT ON TABLE note IS
    'What a manifest said that the tables of its kind do not keep: labels, annotations, descriptive fields.';
