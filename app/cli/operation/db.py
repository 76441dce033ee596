"""`plimsoll db`: the schema of the database, and the catalogue in it."""

from datetime import UTC, datetime

from app.catalogue.install import install_catalogue
from app.cli.common.errors import CliError
from app.cli.common.local import (
    load_settings,
    on_database,
    open_database,
    place_of_database,
)
from app.cli.common.options import command_group
from app.cli.common.output import good, show_line
from app.db.base import migrate

app = command_group(
    "Bring the database to this program's schema, or check it.\n\n"
    "The database is the one that PLIMSOLL_DATABASE_URL names, else the embedded one under PLIMSOLL_DATA_DIR."
)


@app.command()
def upgrade() -> None:
    """Apply the missing migrations.

    Creates the embedded database if there is none yet.
    """
    settings = load_settings()
    with open_database(settings, create=True) as url:
        # Read on both sides, as `upgrade` applies any number of revisions, or none.
        before = migrate.current(url)
        migrate.upgrade(url)
        after = migrate.current(url)
    if before == after:
        show_line(
            f"The database ({place_of_database(settings)}) is already at {after}."
        )
    else:
        show_line(
            f"The database ({place_of_database(settings)}) was upgraded from {before or 'empty'} to {after}."
        )


@app.command()
def current() -> None:
    """Show the current revision and the one that is needed."""
    settings = load_settings()
    # Never makes a database: a question about its state should not make an empty one.
    with open_database(settings) as url:
        has = migrate.current(url)
    show_line(f"database  {place_of_database(settings)}")
    show_line(f"revision  {has or 'none: the database is empty'}")
    show_line(f"needed    {migrate.head()}")


@app.command()
def check() -> None:
    """Exit with 1 unless it has the schema that is needed."""
    settings = load_settings()
    with open_database(settings) as url:
        problem = migrate.check(url)
    if problem is not None:
        raise CliError(problem)
    show_line(
        good(
            f"The database ({place_of_database(settings)}) is at {migrate.head()}, as needed."
        )
    )


@app.command()
def catalogue() -> None:
    """Add the shipped GPU types and networks that are missing.

    Existing ones stay as they are.
    """
    gpu_types, networks = on_database(
        lambda engine: install_catalogue(engine, datetime.now(UTC))
    )
    # Both are 0 where it is complete: operators' own changes are never undone.
    show_line(f"The catalogue gained {gpu_types} GPU types and {networks} networks.")
