"""Roles of an embedded cluster: `plimsoll` owns the database and is no superuser; `postgres` is the superuser.

initdb makes one superuser, called `plimsoll`, as in clusters of versions up to 0.1; PostgreSQL never takes that right
from it. So it is renamed to `postgres`, by a superuser made for that alone, and everything that it made is given to a
new `plimsoll`. Clusters that were just made and older ones go the same way, at their next start.

It keeps a faulty statement from files, programs and settings of the server. It is no boundary against whoever runs code
as the control plane's user: the socket trusts everybody who reaches it.
"""

from collections.abc import Callable

import psycopg

from app.postgres.process import StartFailed

OWNER = "plimsoll"
SUPERUSER = "postgres"
_RENAMER = "plimsoll_renamer"

Conninfo = Callable[[str], str]
"""From a role's name to how it connects to the database `plimsoll`."""


def prepare_roles(conninfo_of: Conninfo) -> None:
    """Bring a cluster's roles and owners to what this module says; costs one query where they are so already.

    Raises psycopg.OperationalError when nobody answers, StartFailed where the cluster has roles of its own in the way.
    """
    with psycopg.connect(conninfo_of(OWNER), autocommit=True) as connection:
        is_superuser, is_renamer_left = connection.execute(_STATE).fetchone() or (0, 0)
        if is_superuser and not is_renamer_left:
            connection.execute(f"CREATE ROLE {_RENAMER} LOGIN SUPERUSER")
    if is_superuser:
        _rename(conninfo_of)
    if is_superuser or is_renamer_left:
        with psycopg.connect(conninfo_of(SUPERUSER), autocommit=True) as connection:
            connection.execute(f"DROP ROLE IF EXISTS {_RENAMER}")


def _rename(conninfo_of: Conninfo) -> None:
    try:
        # One transaction: a crash leaves all as it was, but for the renamer, which the next start finds.
        with psycopg.connect(conninfo_of(_RENAMER)) as connection:
            connection.execute(_RENAME)
            connection.execute(_GIVE)
    # Nobody answers, or a lock is held: the launcher tries again.
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        # Nothing was renamed. A superuser that nobody asked for must not stay.
        with psycopg.connect(conninfo_of(OWNER), autocommit=True) as connection:
            connection.execute(f"DROP ROLE IF EXISTS {_RENAMER}")
        raise StartFailed(
            f"the database cannot be given to a role that is no superuser: {error}. A role {SUPERUSER!r} of your "
            f"own must get another name: `psql '{conninfo_of(OWNER)}' -c 'ALTER ROLE {SUPERUSER} RENAME TO "
            "another'`; then start again"
        ) from error


_STATE = f"""
SELECT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
       EXISTS (SELECT FROM pg_roles WHERE rolname = '{_RENAMER}')
"""

# CREATEDB: `plimsoll up --demo` makes databases of its own; pg_signal_backend, since it also drops them, perhaps while
# autovacuum is at work there. `plimsoll_reader` reads the views of reports; the
# migrations would make it, too, but have the right no more.
_RENAME = f"""
ALTER ROLE {OWNER} RENAME TO {SUPERUSER};
CREATE ROLE {OWNER} LOGIN CREATEDB;
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'plimsoll_reader') THEN
        CREATE ROLE plimsoll_reader NOLOGIN;
    END IF;
END $$;
GRANT plimsoll_reader, pg_signal_backend TO {OWNER};
"""

# REASSIGN OWNED refuses the role that initdb made. Sequences of columns follow their table, and what belongs to an
# extension stays with it. 10 is that role's number in every cluster; numbers below 16384 are PostgreSQL's own.
_GIVE = f"""
DO $$
DECLARE
    found text;
BEGIN
    FOR found IN
        WITH given (class, oid, object) AS (
            SELECT 'pg_class'::regclass, oid, CASE relkind WHEN 'v' THEN 'VIEW ' WHEN 'm' THEN 'MATERIALIZED VIEW '
                WHEN 'S' THEN 'SEQUENCE ' ELSE 'TABLE ' END || oid::regclass
            FROM pg_class WHERE relowner = 10 AND relkind IN ('r', 'p', 'v', 'm', 'S')
            UNION ALL
            SELECT 'pg_proc'::regclass, oid, 'ROUTINE ' || oid::regprocedure FROM pg_proc WHERE proowner = 10
            UNION ALL
            SELECT 'pg_type'::regclass, oid, 'TYPE ' || oid::regtype FROM pg_type
            WHERE typowner = 10 AND typtype IN ('d', 'e', 'r')
            UNION ALL
            SELECT 'pg_namespace'::regclass, oid, 'SCHEMA ' || oid::regnamespace FROM pg_namespace WHERE nspowner = 10
            UNION ALL
            SELECT 'pg_database'::regclass, oid, 'DATABASE ' || quote_ident(datname) FROM pg_database WHERE datdba = 10
        )
        SELECT object FROM given
        WHERE oid >= 16384 AND NOT EXISTS (
            SELECT FROM pg_depend d WHERE d.classid = class AND d.objid = given.oid AND d.deptype IN ('a', 'i', 'e')
              AND (d.deptype = 'e' OR object LIKE 'SEQUENCE %')
        )
    LOOP
        EXECUTE 'ALTER ' || found || ' OWNER TO {OWNER}';
    END LOOP;
    -- Of objects that are made later; the old owner's own entry of this kind has no effect any more.
    IF EXISTS (SELECT FROM pg_namespace WHERE nspname = 'report') THEN
        ALTER DEFAULT PRIVILEGES FOR ROLE {OWNER} IN SCHEMA report GRANT SELECT ON TABLES TO plimsoll_reader;
    END IF;
END $$;
"""
