"""Training tasks and offline jobs: what was submitted, how far each has come, and where targets had them."""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

# Networks have no foreign key: a task may run one that was never profiled.
TASKS = """
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

CREATE TRIGGER task_wakes AFTER INSERT OR UPDATE OF generation, cancelled_at, deleted_at ON task
    FOR EACH STATEMENT EXECUTE FUNCTION wake_loop();
"""


def upgrade() -> None:
    """Make the tables; a change by a person wakes the loop, what nodes report does not."""
    op.execute(TASKS)


def downgrade() -> None:
    """Remove them."""
    op.execute("DROP TABLE plan_task, task")
