"""What targets give to a GPU is stored once for as long as it stays the same."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from alembic import op

revision = "0126"
down_revision = "0125"
branch_labels = None
depends_on = None

_HERE = Path(__file__).parent
_REPORTS = _HERE.parent / "baseline" / "7_reports.sql"
_DECISIONS = _HERE.parent / "baseline" / "3_decisions.sql"
_OLD = ("plan_spare", "plan_task", "plan_replica", "plan_gpu")
"""Tables of before, each before the one that it refers to."""
_NEW = ("allocation", "allocation_replica", "allocation_task", "spare")


def upgrade() -> None:
    """Targets of before keep a row for each of their GPUs, whether or not the next one has the same."""
    reports = list(_dependents(_OLD))
    _drop(reports)
    _run(_TABLES, _MOVE, *(f"DROP TABLE {name}" for name in _OLD), _PLANNED)
    for view in reports:
        view.make(_changed(view))
    _run(_RENAME)


def downgrade() -> None:
    """Planned rates of targets that are no longer in force are those of the newest one that had the same."""
    _run("ALTER VIEW allocation_share RENAME TO plan_share")
    views = [view for view in _dependents(_NEW) if view.name not in _OLD]
    _drop(views)
    for name in reversed(_OLD):
        # The views have the names that the tables get.
        _run(f"ALTER VIEW {name} RENAME TO {name}_kept")
        _run(_before(name))
        _run(f"INSERT INTO {name} SELECT * FROM {name}_kept")
    _run(*(f"DROP VIEW {name}_kept" for name in _OLD))
    _run(*(f"DROP TABLE {name}" for name in reversed(_NEW)))
    for view in views:
        if view.name not in _CHANGES:
            view.make(view.definition)
        elif view.name.startswith("report."):
            view.make(_before(view.name).split(";\n")[0])
        else:
            _run(_before(view.name))


class _View(NamedTuple):
    """A view as it is made again, with what was said of it and who may read it."""

    name: str
    definition: str
    after: tuple[str, ...]
    """Statements for comments and rights."""

    def make(self, sql: str) -> None:
        _run(sql, *self.after)


def _dependents(tables: Iterable[str]) -> Iterator[_View]:
    """All views that read the tables, also through each other, in the order in which they were made."""
    names = ", ".join(f"'{name}'::regclass" for name in tables)
    query = _DEPENDENTS % names
    for row in op.get_bind().exec_driver_sql(query, execution_options=_PLAIN):
        sql = f"CREATE VIEW {row.name} AS {row.definition}"
        yield _View(row.name, sql, tuple(row.after))


_PLAIN = {"no_parameters": True}

_DEPENDENTS = """
WITH RECURSIVE needed AS (
    SELECT oid FROM pg_class WHERE oid IN (%s)
    UNION
    SELECT r.ev_class FROM needed n
    JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = n.oid
    JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
)
SELECT c.oid::regclass::text AS name, pg_get_viewdef(c.oid) AS definition,
       array(SELECT format('COMMENT ON %%s IS %%L',
                           CASE d.objsubid WHEN 0 THEN 'VIEW ' || c.oid::regclass
                                ELSE format('COLUMN %%s.%%I', c.oid::regclass, a.attname) END, d.description)
             FROM pg_description d LEFT JOIN pg_attribute a ON a.attrelid = d.objoid AND a.attnum = d.objsubid
             WHERE d.classoid = 'pg_class'::regclass AND d.objoid = c.oid ORDER BY d.objsubid)
       || array(SELECT format('GRANT %%s ON %%s TO %%I', g.privilege_type, c.oid::regclass, pg_get_userbyid(g.grantee))
                FROM aclexplode(c.relacl) AS g WHERE g.grantee <> 0 AND g.grantee <> c.relowner) AS after
FROM needed JOIN pg_class c USING (oid)
WHERE c.relkind = 'v' ORDER BY c.oid
"""


def _drop(views: Sequence[_View]) -> None:
    _run(*(f"DROP VIEW {view.name}" for view in reversed(views)))


def _run(*statements: str) -> None:
    for statement in statements:
        op.get_bind().exec_driver_sql(statement, execution_options=_PLAIN)


def _changed(view: _View) -> str:
    if view.name not in _CHANGES:
        return view.definition
    sql = _before(view.name).split(";\n")[0]
    for old, new in _CHANGES[view.name]:
        assert old in sql, f"{view.name} has no {old!r}"
        sql = sql.replace(old, new)
    return sql


def _before(name: str) -> str:
    """How a table or view was made, with its indexes and what was said of it."""
    files = {
        "plan_spare": _HERE / "0114_spares.py",
        "report.budget_status": _HERE / "0115_standing_cost.py",
    }
    default = _DECISIONS if name in _OLD else _REPORTS
    sql = files.get(name, default).read_text(encoding="utf-8")
    made = rf"CREATE (?:TABLE|(?:OR REPLACE )?VIEW) {re.escape(name)} .*?(?=\n\n|\n *\"\"\")"
    found = re.search(made, sql, re.DOTALL)
    assert found is not None
    # 0121 gave the column of the table another name.
    return found[0].replace("p.status, p.method", "p.solution, p.method")


_TABLES = """
CREATE TABLE allocation (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    gpu resource_name NOT NULL,
    generations int8range NOT NULL CHECK (NOT isempty(generations) AND NOT lower_inf(generations)),
    node resource_name NOT NULL,
    -- Prices go with their GPU type, and the bill with the prices: types that were billed stay.
    gpu_type resource_name NOT NULL CONSTRAINT allocation_gpu_type REFERENCES gpu_type,
    clock_mhz positive_amount NOT NULL,
    power_cap_w amount NOT NULL,
    memory_mib amount NOT NULL,
    idle_w amount NOT NULL
);
CREATE UNIQUE INDEX allocation_begun ON allocation (gpu, lower(generations));
CREATE UNIQUE INDEX allocation_open ON allocation (gpu) WHERE upper_inf(generations);
CREATE INDEX allocation_by_generation ON allocation USING gist (generations);
COMMENT ON TABLE allocation IS
    'What a GPU was given, for as long as targets gave it the same; GPUs without replicas and tasks have no row.';
COMMENT ON COLUMN allocation.generations IS 'Of the targets that give it that; without an end: the one in force does.';
COMMENT ON COLUMN allocation.memory_mib IS 'Of the GPU type, when the first of these targets was pushed; so is idle_w.';
CREATE TABLE allocation_replica (
    allocation bigint NOT NULL REFERENCES allocation ON DELETE CASCADE,
    replica resource_name NOT NULL,
    service resource_name NOT NULL,
    project resource_name NOT NULL,
    network resource_name NOT NULL,
    sm_percent numeric NOT NULL CHECK (sm_percent > 0 AND sm_percent <= 100),
    batch integer NOT NULL CHECK (batch >= 1),
    memory_mib numeric NOT NULL CHECK (memory_mib >= 0 AND memory_mib < 'Infinity'),
    power_w amount NOT NULL,
    arrival_rate_rps amount NOT NULL,
    PRIMARY KEY (allocation, replica)
);
CREATE INDEX allocation_replica_by_service ON allocation_replica (service);
COMMENT ON TABLE allocation_replica IS 'Replicas of an allocation.';
COMMENT ON COLUMN allocation_replica.power_w IS
    'Watts above idle by the profile in force when the first of its targets was pushed; 0 = there was none.';
COMMENT ON COLUMN allocation_replica.arrival_rate_rps IS 'As the newest of its targets plans it.';

CREATE TABLE allocation_task (
    allocation bigint NOT NULL REFERENCES allocation ON DELETE CASCADE,
    task resource_name NOT NULL,
    name resource_name NOT NULL,
    project resource_name NOT NULL,
    kind text NOT NULL,
    network resource_name NOT NULL,
    sm_percent numeric NOT NULL CHECK (sm_percent > 0 AND sm_percent <= 100),
    batch integer NOT NULL CHECK (batch >= 1),
    memory_mib numeric NOT NULL CHECK (memory_mib >= 0 AND memory_mib < 'Infinity'),
    power_w amount NOT NULL,
    PRIMARY KEY (allocation, task)
);
CREATE INDEX allocation_task_by_task ON allocation_task (task);
COMMENT ON TABLE allocation_task IS 'Tasks of an allocation; those that are swapped out hold nothing of a GPU.';
COMMENT ON COLUMN allocation_task.power_w IS
    'Watts above idle by the profile in force when the first of its targets was pushed; 0 where there was none.';

CREATE TABLE spare (
    gpu resource_name NOT NULL,
    replica resource_name NOT NULL,
    generations int8range NOT NULL CHECK (NOT isempty(generations) AND NOT lower_inf(generations)),
    gpu_type resource_name NOT NULL,
    clock_mhz positive_amount NOT NULL,
    service resource_name NOT NULL,
    network resource_name NOT NULL,
    sm_percent numeric NOT NULL CHECK (sm_percent > 0 AND sm_percent <= 100),
    batch integer NOT NULL CHECK (batch >= 1),
    memory_mib numeric NOT NULL CHECK (memory_mib >= 0 AND memory_mib < 'Infinity'),
    PRIMARY KEY (gpu, replica, generations)
);
CREATE UNIQUE INDEX spare_open ON spare (gpu, replica) WHERE upper_inf(generations);
CREATE INDEX spare_by_generation ON spare USING gist (generations);
COMMENT ON TABLE spare IS
    'Loaded replicas without a rate that targets hold ready, on what their replicas and tasks leave over.';
COMMENT ON COLUMN spare.generations IS 'Of the targets that hold it; without an end: the one in force does.';
"""

_MOVE = """
CREATE TEMPORARY VIEW of_target AS
    SELECT plan_id, generation,
           int8range(generation, lead(generation) OVER (ORDER BY generation)) AS generations FROM target;
INSERT INTO allocation (gpu, generations, node, gpu_type, clock_mhz, power_cap_w, memory_mib, idle_w)
SELECT gpu, generations, node, gpu_type, clock_mhz, power_cap_w, memory_mib, idle_w
FROM plan_gpu JOIN of_target USING (plan_id);
INSERT INTO allocation_replica
SELECT a.id, r.replica, r.service, r.project, r.network, r.sm_percent, r.batch, r.memory_mib, r.power_w,
       r.arrival_rate_rps
FROM plan_replica r JOIN target t USING (plan_id)
JOIN allocation a ON a.gpu = r.gpu AND lower(a.generations) = t.generation;
INSERT INTO allocation_task
SELECT a.id, r.task, r.name, r.project, r.kind, r.network, r.sm_percent, r.batch, r.memory_mib, r.power_w
FROM plan_task r JOIN target t USING (plan_id)
JOIN allocation a ON a.gpu = r.gpu AND lower(a.generations) = t.generation;
INSERT INTO spare
SELECT gpu, replica, generations, gpu_type, clock_mhz, service, network, sm_percent, batch, memory_mib
FROM plan_spare JOIN of_target USING (plan_id);
DROP VIEW of_target"""

_PLANNED = """
CREATE VIEW plan_gpu AS
SELECT t.plan_id, a.gpu, a.node, a.gpu_type, a.clock_mhz, a.power_cap_w, a.memory_mib, a.idle_w
FROM target t JOIN allocation a ON a.generations @> t.generation;
COMMENT ON VIEW plan_gpu IS 'GPUs that a target uses.';

CREATE VIEW plan_replica AS
SELECT t.plan_id, a.gpu, r.replica, r.service, r.project, r.network, r.sm_percent, r.batch, r.memory_mib, r.power_w,
       r.arrival_rate_rps
FROM target t JOIN allocation a ON a.generations @> t.generation JOIN allocation_replica r ON r.allocation = a.id;
COMMENT ON VIEW plan_replica IS 'Replicas that a target runs.';

CREATE VIEW plan_task AS
SELECT t.plan_id, a.gpu, k.task, k.name, k.project, k.kind, k.network, k.sm_percent, k.batch, k.memory_mib, k.power_w
FROM target t JOIN allocation a ON a.generations @> t.generation JOIN allocation_task k ON k.allocation = a.id;
COMMENT ON VIEW plan_task IS 'Tasks that a target runs.';

CREATE VIEW plan_spare AS
SELECT t.plan_id, s.gpu, s.gpu_type, s.clock_mhz, s.replica, s.service, s.network, s.sm_percent, s.batch, s.memory_mib
FROM target t JOIN spare s ON s.generations @> t.generation;
COMMENT ON VIEW plan_spare IS 'Spares that a target holds ready.';
"""

_RENAME = """
ALTER VIEW plan_share RENAME TO allocation_share;
COMMENT ON VIEW allocation_share IS 'How each allocation divides its GPU between services and what is left idle.';
COMMENT ON VIEW gpu_segment IS
    'GPUs that carried replicas, cut where what they carried, the price or the hour changed, each with its bill.';
COMMENT ON VIEW task_share IS
    'How the part of a GPU that a project''s tasks have in an allocation is divided between them.';
"""

_HOURS = """
CROSS JOIN LATERAL generate_series(date_trunc('hour', lower(c.period), 'UTC'),
                                   upper(c.period) - interval '1 microsecond', interval '1 hour') AS hour (hour)
CROSS JOIN LATERAL (SELECT extract(epoch FROM least(upper(c.period), hour.hour + interval '1 hour')
                                              - greatest(lower(c.period), hour.hour)) AS seconds) AS cut
WHERE NOT isempty(c.period)"""

_CHANGES = {
    "gpu_segment": (
        (
            "SELECT t.plan_id, g.gpu, g.gpu_type",
            "SELECT a.id AS allocation, a.gpu, a.gpu_type",
        ),
        (
            """FROM target t
JOIN plan_gpu g USING (plan_id)
CROSS JOIN as_of
JOIN gpu_price p ON p.gpu_type = g.gpu_type AND p.valid && t.valid
CROSS JOIN LATERAL (SELECT t.valid * p.valid""",
            """FROM allocation a
JOIN target t ON t.generation = lower(a.generations)
LEFT JOIN target n ON n.generation = upper(a.generations)
CROSS JOIN as_of
-- CASE: the database may look at pairs of targets before it looks at their numbers.
CROSS JOIN LATERAL (SELECT CASE WHEN lower(n.valid) < lower(t.valid) THEN NULL
                                ELSE tstzrange(lower(t.valid), lower(n.valid)) END AS valid) AS v
JOIN gpu_price p ON p.gpu_type = a.gpu_type AND p.valid && v.valid
CROSS JOIN LATERAL (SELECT v.valid * p.valid""",
        ),
    ),
    "plan_share": (
        ("SELECT plan_id, gpu, '(idle)'", "SELECT a.id, '(idle)'"),
        ("min(g.memory_mib::numeric)", "a.memory_mib::numeric"),
        ("min(g.idle_w::numeric)", "a.idle_w::numeric"),
        (
            "JOIN plan_gpu g USING (plan_id, gpu) GROUP BY plan_id, gpu",
            "JOIN allocation a ON a.id = u.allocation GROUP BY a.id",
        ),
        ("FROM plan_replica", "FROM allocation_replica"),
        ("FROM plan_task", "FROM allocation_task"),
        ("plan_id, gpu", "allocation"),
    ),
    "task_share": (
        ("t.plan_id, t.gpu, t.task", "t.allocation, t.task"),
        ("FROM plan_task t", "FROM allocation_task t"),
        ("p.plan_id = t.plan_id AND p.gpu = t.gpu", "p.allocation = t.allocation"),
        ("PARTITION BY t.plan_id, t.gpu,", "PARTITION BY t.allocation,"),
    ),
    "whole_gpus": (
        (
            "SELECT r.plan_id, g.gpu_type, r.project, r.service",
            "SELECT t.plan_id, a.gpu_type, r.project, r.service",
        ),
        (
            """FROM (SELECT plan_id, gpu, project, service, sm_percent FROM plan_replica
      UNION ALL SELECT plan_id, gpu, project, '(tasks)', sm_percent FROM plan_task) AS r
JOIN plan_gpu g USING (plan_id, gpu)
GROUP BY r.plan_id, g.gpu_type, r.project, r.service""",
            """FROM target t
JOIN allocation a ON a.generations @> t.generation
CROSS JOIN LATERAL (SELECT project, service, sm_percent FROM allocation_replica WHERE allocation = a.id
                    UNION ALL SELECT project, '(tasks)', sm_percent FROM allocation_task WHERE allocation = a.id) AS r
GROUP BY t.plan_id, a.gpu_type, r.project, r.service""",
        ),
    ),
    "report.allocation_hour": (
        ("p.plan_id = s.plan_id AND p.gpu = s.gpu", "p.allocation = s.allocation"),
    ),
    "report.cost_by_task_hour": (
        ("t.plan_id = s.plan_id AND t.gpu = s.gpu", "t.allocation = s.allocation"),
    ),
    # By target still, in which all GPUs of a type have the same hours.
    "report.cost_without_sharing_hour": (
        (
            """FROM (SELECT plan_id, gpu_type, hour, sum(seconds) / count(DISTINCT gpu) AS seconds,
             sum(bill_usd) / count(DISTINCT gpu) AS usd
      FROM gpu_segment GROUP BY plan_id, gpu_type, hour) AS s""",
            f"""FROM (SELECT t.plan_id, p.gpu_type, hour.hour, sum(cut.seconds) AS seconds,
             sum(round(p.price_usd_per_hour * cut.seconds / 3600, 12)) AS usd
FROM target t
CROSS JOIN as_of
JOIN gpu_price p ON p.valid && t.valid
CROSS JOIN LATERAL (SELECT t.valid * p.valid * tstzrange(NULL, as_of.at) AS period) AS c {_HOURS}
GROUP BY t.plan_id, p.gpu_type, hour.hour) AS s""",
        ),
    ),
    "report.budget_status": (
        (
            """FROM target t
        JOIN plan_share s USING (plan_id)
        JOIN plan_gpu u USING (plan_id, gpu)""",
            """FROM allocation u
        CROSS JOIN LATERAL (SELECT * FROM plan_share p WHERE p.allocation = u.id OFFSET 0) AS s""",
        ),
        ("WHERE upper_inf(t.valid)", "WHERE upper_inf(u.generations)"),
    ),
    "report.energy_by_service_hour": (
        (
            """JOIN plan_share r USING (plan_id, gpu)
    JOIN plan_gpu g USING (plan_id, gpu)""",
            """JOIN allocation g ON g.id = s.allocation
    CROSS JOIN LATERAL (
        SELECT * FROM plan_share p WHERE p.allocation = s.allocation AND s.hour IS NOT NULL OFFSET 0
    ) AS r""",
        ),
        (
            "SELECT hour, gpu, sum(seconds) AS seconds, sum(seconds * g",
            "SELECT hour, s.gpu, sum(seconds) AS seconds, sum(seconds * g",
        ),
        (
            "FROM gpu_segment JOIN plan_gpu g USING (plan_id, gpu) GROUP BY hour, gpu",
            "FROM gpu_segment s JOIN allocation g ON g.id = s.allocation GROUP BY hour, s.gpu",
        ),
    ),
    # Of the allocations alone that began or ended with the target.
    "report.plan_history": (
        (
            """SELECT count(*) FROM plan_replica n WHERE n.plan_id = p.id AND NOT EXISTS (
               SELECT FROM plan_replica o WHERE o.plan_id = b.plan_id AND o.gpu = n.gpu AND o.replica = n.replica)""",
            """SELECT count(*) FROM allocation a JOIN allocation_replica n ON n.allocation = a.id
           WHERE a.generations -|- int8range(NULL, t.generation) AND NOT EXISTS (
               SELECT FROM allocation b JOIN allocation_replica o ON o.allocation = b.id
               WHERE b.gpu = a.gpu AND upper(b.generations) = t.generation AND o.replica = n.replica)""",
        ),
        (
            """SELECT count(*) FROM plan_replica o WHERE o.plan_id = b.plan_id AND NOT EXISTS (
               SELECT FROM plan_replica n WHERE n.plan_id = p.id AND n.gpu = o.gpu AND n.replica = o.replica)""",
            """SELECT count(*) FROM allocation a JOIN allocation_replica o ON o.allocation = a.id
           WHERE a.generations -|- int8range(t.generation, NULL) AND NOT EXISTS (
               SELECT FROM allocation b JOIN allocation_replica n ON n.allocation = b.id
               WHERE b.gpu = a.gpu AND lower(b.generations) = t.generation AND n.replica = o.replica)""",
        ),
        (
            "LEFT JOIN target t ON t.plan_id = p.id\nLEFT JOIN target b ON b.generation = p.parent",
            "LEFT JOIN target t ON t.plan_id = p.id",
        ),
    ),
}
"""By view: what is replaced in how it was made, and by what."""
