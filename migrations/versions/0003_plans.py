"""Decisions: plans with all that led to them, the target's history, and the commands to the nodes."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

PLANS = """
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
    PRIMARY KEY (service, at, method)
);
CREATE INDEX demand_by_time ON demand (at);
CREATE INDEX demand_by_plan ON demand (plan_id);
COMMENT ON TABLE demand IS
    'Arrival rates that plans were made for (method forecast), or that a person stated (method stated).';
"""

TARGETS = """
CREATE TABLE plan_gpu (
    plan_id bigint NOT NULL REFERENCES plan ON DELETE CASCADE,
    gpu resource_name NOT NULL,
    node resource_name NOT NULL,
    gpu_type resource_name NOT NULL,
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
"""

TRIGGERS = """
CREATE TRIGGER approval_wakes AFTER UPDATE OF state ON plan
    FOR EACH ROW WHEN (NEW.state = 'approved') EXECUTE FUNCTION wake_loop();
"""


def upgrade() -> None:
    """Make the decision tables."""
    for part in (PLANS, TARGETS, TRIGGERS):
        op.execute(part)


def downgrade() -> None:
    """Remove them."""
    op.execute(
        "DROP TABLE acknowledgement, command, target, plan_replica, plan_gpu, demand, plan_violation, plan_step, plan, "
        "archive"
    )
