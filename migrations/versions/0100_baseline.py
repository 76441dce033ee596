"""The schema of 0.1.0, from one SQL file per topic; revisions before it were never released."""

import re
from pathlib import Path

from alembic import op

revision = "0100"
down_revision = None
branch_labels = None
depends_on = None

# By name: each file builds on those before it.
FILES = sorted((Path(__file__).parents[1] / "baseline").glob("*.sql"))


def upgrade() -> None:
    """Run the files as they are: colons and percent signs in them are no parameters."""
    for file in FILES:
        sql = file.read_text(encoding="utf-8")
        op.get_bind().exec_driver_sql(sql, execution_options={"no_parameters": True})


def downgrade() -> None:
    """Remove what they made. The extension and the role stay: others may use them."""
    sql = "\n".join(file.read_text(encoding="utf-8") for file in FILES)
    made = re.findall(r"^CREATE (TABLE|FUNCTION|DOMAIN) (\w+)", sql, re.MULTILINE)
    op.execute("DROP SCHEMA report CASCADE")
    for kind in ("TABLE", "FUNCTION", "DOMAIN"):
        names = ", ".join(name for other, name in made if other == kind)
        op.execute(f"DROP {kind} {names} CASCADE")
