"""Long parts of plans and commands are packed; what many plans have is stored once, what they bind as a difference."""

import hashlib
import json
import zlib
from collections.abc import Callable
from typing import Any

from alembic import op
from sqlalchemy import CursorResult, Row, text

revision = "0127"
down_revision = "0126"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Plans of before go on having all their GPUs."""
    op.execute(_CONTENTS)
    for plan_id in _run(_PLANS).scalars().all():
        row = _run("SELECT document, bound FROM plan WHERE id = :id", id=plan_id).one()
        row.document.pop("report", None)
        content = _packed(row.document)
        sha256 = hashlib.sha256(content).digest()
        _run(_ADD, sha256=sha256, body=content)
        packed = None if row.bound is None else _packed(row.bound)
        _run(_SET_PACKED, id=plan_id, packed=packed, content=sha256)
    op.execute(_PACKED)
    _change_commands(zlib.compress)


def downgrade() -> None:
    """Plans have all their GPUs again."""
    _change_commands(zlib.decompress)
    op.execute(_DOCUMENTS)
    # A target comes before what is stored as its difference from it.
    for plan_id in _run(_PLANS).scalars().all():
        row = _run(_ROW, id=plan_id).one()
        document = {**_unpacked(row.body), "report": _report(row)}
        bound = None
        if row.bound is not None:
            bound = _unpacked(row.bound)
            if row.dropped_gpus is not None:
                gone = {*row.dropped_gpus, *(gpu["id"] for gpu in bound["gpus"])}
                same = [gpu for gpu in row.base["gpus"] if gpu["id"] not in gone]
                bound["gpus"] = sorted(
                    [*same, *bound["gpus"]], key=lambda gpu: gpu["id"]
                )
            bound = _json(bound)
        _run(_SET_UNPACKED, id=plan_id, document=_json(document), unpacked=bound)
    op.execute(_UNPACKED)


def _report(row: Row[Any]) -> dict[str, object]:
    report = {
        "status": row.solution or "kept",
        "cost_usd_per_hour": float(row.cost_usd_per_hour),
        "lower_bound_usd_per_hour": row.lower_bound_usd_per_hour,
        "gap_percent": row.gap_percent,
        "seconds": row.seconds,
        "method": row.method,
        "messages": row.messages,
    }
    if row.served_weight is not None:
        report["served_weight"] = row.served_weight
        report["served_weight_upper_bound"] = row.served_weight_upper_bound
    return report


def _change_commands(change: Callable[[bytes], bytes]) -> None:
    for key in _run("SELECT node, generation FROM command").all():
        which = {"node": key.node, "generation": key.generation}
        where = "WHERE node = :node AND generation = :generation"
        body = _run(f"SELECT body FROM command {where}", **which).scalar_one()
        _run(f"UPDATE command SET body = :body {where}", body=change(body), **which)


def _run(sql: str, **values: object) -> CursorResult[Any]:
    return op.get_bind().execute(text(sql), values)


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _packed(value: object) -> bytes:
    return zlib.compress(_json(value).encode(), 1)


def _unpacked(body: bytes) -> Any:
    return json.loads(zlib.decompress(body))


_PLANS = "SELECT id FROM plan ORDER BY generation NULLS FIRST, id"

_ROW = """
SELECT p.*, c.body, b.unpacked AS base
FROM plan p JOIN plan_content c ON c.sha256 = p.content
LEFT JOIN target t ON t.generation = p.parent LEFT JOIN plan b ON b.id = t.plan_id
WHERE p.id = :id
"""

_ADD = "INSERT INTO plan_content (sha256, body) VALUES (:sha256, :body) ON CONFLICT DO NOTHING"

_SET_PACKED = "UPDATE plan SET content = :content, packed = :packed WHERE id = :id"

_SET_UNPACKED = """
UPDATE plan SET document = CAST(:document AS jsonb), unpacked = CAST(:unpacked AS jsonb) WHERE id = :id
"""

_CONTENTS = """
CREATE TABLE plan_content (
    sha256 bytea PRIMARY KEY CHECK (octet_length(sha256) = 32),
    body bytea NOT NULL,
    used_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE plan_content IS 'Long parts of plans, by their hashes, each once for all plans that have the same.';
COMMENT ON COLUMN plan_content.body IS 'zlib of JSON.';
COMMENT ON COLUMN plan_content.used_at IS 'When a plan was last recorded that has it, by the database''s clock.';
INSERT INTO plan_content (sha256, body)
    SELECT sha256(problem), problem FROM plan WHERE problem IS NOT NULL ON CONFLICT DO NOTHING;
UPDATE plan SET problem = sha256(problem) WHERE problem IS NOT NULL;
ALTER TABLE plan ADD content bytea REFERENCES plan_content, ADD packed bytea, ADD served_weight double precision,
    ADD served_weight_upper_bound double precision;
-- With all digits; the rest of the report has columns that say the same.
UPDATE plan SET cost_usd_per_hour = (document -> 'report' ->> 'cost_usd_per_hour')::numeric,
    served_weight = (document -> 'report' ->> 'served_weight')::double precision,
    served_weight_upper_bound = (document -> 'report' ->> 'served_weight_upper_bound')::double precision
    WHERE document -> 'report' ? 'cost_usd_per_hour';
"""

# The checks of the baseline go with the column that they name, and come back under their names.
_CHECKS = """
ALTER TABLE plan DROP bound;
ALTER TABLE plan RENAME packed TO bound;
ALTER TABLE plan
    ADD CONSTRAINT plan_check CHECK ((bound IS NULL) = (generation IS NULL) AND (bound IS NULL) = (parent IS NULL)),
    ADD CONSTRAINT plan_check1 CHECK (state NOT IN ('approved', 'target', 'superseded') OR bound IS NOT NULL);
"""

# The differences' target is that of the number `parent`.
_PACKED = f"""
ALTER TABLE plan DROP document, ALTER content SET NOT NULL;
{_CHECKS}
ALTER TABLE plan ADD dropped_gpus text[] CONSTRAINT plan_difference CHECK (dropped_gpus IS NULL OR bound IS NOT NULL),
    ADD CONSTRAINT plan_problem_fkey FOREIGN KEY (problem) REFERENCES plan_content;
CREATE INDEX plan_by_content ON plan (content);
CREATE INDEX plan_by_problem ON plan (problem);
COMMENT ON COLUMN plan.content IS 'What it wants: the contract''s JSON without its report, in plan_content.';
COMMENT ON COLUMN plan.served_weight IS 'Σ priority · served rps, under max_goodput only.';
COMMENT ON COLUMN plan.problem IS
    'The input: the contract''s JSON, where shared parts are hashes into archive, in plan_content.';
COMMENT ON COLUMN plan.bound IS
    'What it binds to GPUs, zlib of JSON; beside dropped_gpus only the GPUs that the target `parent` has otherwise.';
COMMENT ON COLUMN plan.dropped_gpus IS
    'Bound to something by the target `parent` and to nothing by this plan; null = bound has all GPUs.';
COMMENT ON COLUMN command.body IS 'zlib of the wire''s JSON.';
COMMENT ON TABLE command IS 'The complete wanted state of a node, by generation.';
"""

_DOCUMENTS = """
ALTER TABLE plan ADD document jsonb, ADD unpacked jsonb;
"""

_UNPACKED = f"""
ALTER TABLE plan DROP CONSTRAINT plan_problem_fkey, DROP dropped_gpus, DROP content, DROP served_weight,
    DROP served_weight_upper_bound;
ALTER TABLE plan RENAME unpacked TO packed;
{_CHECKS}
ALTER TABLE plan ALTER document SET NOT NULL;
UPDATE plan p SET problem = c.body FROM plan_content c WHERE c.sha256 = p.problem;
DROP TABLE plan_content;
DROP INDEX plan_by_problem;
COMMENT ON COLUMN plan.document IS 'The plan with its report, as the contract''s JSON.';
COMMENT ON COLUMN plan.problem IS
    'The input: zlib of the contract''s JSON, where shared parts are hashes into archive.';
COMMENT ON COLUMN command.body IS NULL;
COMMENT ON TABLE command IS 'The complete wanted state of a node, by generation; body is the wire''s JSON.';
"""
