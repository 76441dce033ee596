"""docs/sql.md from the comments that the views carry in the database; a test keeps the file up to date."""

from pathlib import Path

from sqlalchemy import Connection, create_engine, text

from tools.documents.sql_questions import chapter

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sql.md"

HEAD = """# Reporting views

Generated from the comments in the database by `tools/documents/sql.py`; do not edit.

The schema `report` is a public interface: columns are added, never renamed or removed without notice. The role
`plimsoll_reader` may read it and nothing else:

    CREATE ROLE analyst LOGIN PASSWORD '...' IN ROLE plimsoll_reader;

A superuser makes such a role; of the embedded server that is `postgres` (`psql -U postgres` on the same socket).

Money is `numeric` and is not rounded; round where you display it. Every segment of a GPU's time (cut where the target,
the price or the hour changes) has a bill to the pico-dollar, and its shares are cut by cumulative rounding, so that
the rows of a report add up to `bill_hour` exactly, in each of three accountings: by SM percent (`cost_usd`), whole GPUs
(`whole_gpu_cost_usd`) and GPU memory (`memory_cost_usd`). Times are UTC; periods that are still open count up to the
newest moment that the control plane wrote down.

What did each team cost yesterday, and what was idle?

    SELECT project, round(sum(cost_usd), 2) AS usd, round(sum(whole_gpu_cost_usd), 2) AS usd_if_nothing_were_idle
    FROM report.cost_by_project_hour
    WHERE hour >= date_trunc('day', now(), 'UTC') - interval '1 day' AND hour < date_trunc('day', now(), 'UTC')
    GROUP BY project ORDER BY usd DESC;

Which services missed their SLO, and when?

    SELECT hour, service, attainment_percent, slo_percent FROM report.slo_attainment_hour
    WHERE NOT is_met ORDER BY hour;

How far from the proven optimum are the plans?

    SELECT plan_id, at, method, cost_usd_per_hour, lower_bound_usd_per_hour, gap_percent, seconds
    FROM report.plan_history WHERE in_force_from IS NOT NULL ORDER BY plan_id DESC LIMIT 20;
"""

_VIEWS = """
SELECT c.relname AS view, obj_description(c.oid) AS meaning
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'report' AND c.relkind = 'v' ORDER BY c.relname
"""

_COLUMNS = """
SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS kind,
       col_description(a.attrelid, a.attnum) AS meaning
FROM pg_attribute a WHERE a.attrelid = CAST('report.' || :view AS regclass) AND a.attnum > 0 ORDER BY a.attnum
"""


def document(connection: Connection) -> str:
    """The text of docs/sql.md."""
    parts = [HEAD, chapter()]
    for view in connection.execute(text(_VIEWS)).all():
        rows = connection.execute(text(_COLUMNS), {"view": view.view}).all()
        lines = [
            f"| `{row.name}` | {_plain(row.kind)} | {row.meaning} |" for row in rows
        ]
        table = "\n".join(["| column | type | meaning |", "|---|---|---|", *lines])
        parts.append(f"\n## report.{view.view}\n\n{view.meaning}\n\n{table}\n")
    return "".join(parts)


def _plain(kind: str) -> str:
    """Domains only add limits that a reader of reports need not know."""
    names = {
        "timestamp with time zone": "timestamptz",
        "resource_name": "text",
        "double precision": "double",
    }
    names |= {"amount": "double", "positive_amount": "double"}
    return names.get(kind, kind)


def write_document() -> None:
    """Write docs/sql.md again, from the views of a database that is made for it."""
    # Imported here: the page is made on a developer's machine only.
    import tempfile

    from app.db.base import migrate
    from app.postgres import server as postgres

    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder) / "data"
        server = postgres.start(data_dir)
        try:
            migrate.upgrade(server.url)
            with create_engine(server.url).connect() as connection:
                PAGE.write_text(document(connection), encoding="utf-8")
        finally:
            postgres.stop(data_dir)


if __name__ == "__main__":
    write_document()
