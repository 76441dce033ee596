"""The read-only role for reports."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

# Roles belong to the whole server: another database may have made it, and a managed server may not let us.
MAKE_ROLE = """
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'plimsoll_reader') THEN
        CREATE ROLE plimsoll_reader NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'role plimsoll_reader was not created (no CREATEROLE); create it, then grant it USAGE on schema '
                     'report and SELECT on its views';
END $$
"""

# Views run with their owner's rights: the reader needs none on the tables behind them.
GRANT = """
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'plimsoll_reader') THEN
        GRANT USAGE ON SCHEMA report TO plimsoll_reader;
        GRANT SELECT ON ALL TABLES IN SCHEMA report TO plimsoll_reader;
        ALTER DEFAULT PRIVILEGES IN SCHEMA report GRANT SELECT ON TABLES TO plimsoll_reader;
    END IF;
END $$
"""

REVOKE = """
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'plimsoll_reader') THEN
        ALTER DEFAULT PRIVILEGES IN SCHEMA report REVOKE SELECT ON TABLES FROM plimsoll_reader;
        REVOKE ALL ON ALL TABLES IN SCHEMA report FROM plimsoll_reader;
        REVOKE ALL ON SCHEMA report FROM plimsoll_reader;
    END IF;
END $$
"""


def upgrade() -> None:
    """Make the role where it is missing, and let it read the reports and nothing else."""
    op.execute(MAKE_ROLE)
    op.execute(GRANT)


def downgrade() -> None:
    """Take its rights back. The role stays: other databases may grant it something."""
    op.execute(REVOKE)
