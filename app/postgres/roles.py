"""Roles of an embedded cluster: `plimsoll` owns the database and is no superuser; `postgres` is the superuser.

It keeps a faulty statement from files, programs and settings of the server. It is no boundary against code that runs
as the control plane's user: the socket trusts everybody who reaches it.
"""

import psycopg
from psycopg import sql

OWNER = "plimsoll"
SUPERUSER = "postgres"

Connection = psycopg.Connection[tuple[object, ...]]


def make_database(superuser: Connection, database: str) -> None:
    """Make the database and the roles where they are missing, by a connection of the superuser's that commits by
    itself."""
    found = superuser.execute(
        "SELECT FROM pg_database WHERE datname = %s", [database]
    ).fetchone()
    if found is not None:
        return
    # One transaction: after a crash there are all roles or none.
    if not superuser.execute(_FIND_OWNER).fetchone():
        superuser.execute(_MAKE_ROLES)
    # By itself, since PostgreSQL makes a database in no transaction.
    superuser.execute(
        sql.SQL("CREATE DATABASE {} OWNER {}").format(
            sql.Identifier(database), sql.Identifier(OWNER)
        )
    )


_FIND_OWNER = f"SELECT 1 FROM pg_roles WHERE rolname = '{OWNER}'"

# CREATEDB: `plimsoll up --demo` makes databases of its own; pg_signal_backend, since it also drops them, perhaps while
# autovacuum is at work there. `plimsoll_reader` reads the views of reports; the migrations would make it, too, but have
# no right to.
_MAKE_ROLES = f"""
CREATE ROLE plimsoll_reader NOLOGIN;
CREATE ROLE {OWNER} LOGIN CREATEDB;
GRANT plimsoll_reader, pg_signal_backend TO {OWNER};
"""
