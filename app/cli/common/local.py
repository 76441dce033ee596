"""What commands on the control plane's own machine need: its settings, and its database without any API."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit, urlunsplit

from pydantic import ValidationError

from app.base.errors import Unavailable
from app.base.settings import Settings
from app.cli.common.errors import CliError

if TYPE_CHECKING:
    from app.db.base.transaction import Engine

Result = TypeVar("Result")


def load_settings(**flags: object) -> Settings:
    """The settings; flags that are None do not count. Raises CliError, which names the variable."""
    try:
        # None would win over the environment.
        given = {name: value for name, value in flags.items() if value is not None}
        return Settings(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        wrong = error.errors()[0]
        # Where settings contradict each other, the input is all of them, secrets too.
        if not wrong["loc"]:
            raise CliError(wrong["msg"].removeprefix("Value error, ")) from error
        name = str(wrong["loc"][0])
        raise CliError(
            f"PLIMSOLL_{name.upper()}: {wrong['msg']}, not {wrong['input']!r}"
        ) from error


@contextmanager
def open_database(
    settings: Settings, *, create: bool = False, needs_sessions: bool = False
) -> Iterator[str]:
    """SQLAlchemy's URL of the database. An embedded server runs for as long as anybody uses it.

    `create`: make the embedded database if it is not there. `needs_sessions`: refuse a pooler that gives connections
    none of their own. Raises CliError, also for what fails inside.
    """
    # Here: many commands need the settings alone, and the database's libraries take half a second.
    from app.postgres import server as postgres

    if settings.database_url is not None:
        url = settings.database_url.get_secret_value()
        # Errors from inside the block come here, too: a server may go away while it is used.
        with _errors_explained(masked(url)):
            if needs_sessions:
                _refuse_pooler(url)
            yield url
        return
    if not create and not has_embedded_database(settings):
        raise CliError(
            f"there is no database in {settings.data_dir.resolve()}",
            hint="`plimsoll db upgrade` creates one; PLIMSOLL_DATA_DIR or PLIMSOLL_DATABASE_URL point to another",
        )
    try:
        with (
            # Counted: the server stops with its last user, of whatever process.
            postgres.in_use(settings.data_dir) as server,
            _errors_explained(f"the embedded server in {settings.data_dir}"),
        ):
            yield server.url
    except postgres.PostgresError as error:
        raise CliError(str(error)) from error


def _refuse_pooler(url: str) -> None:
    from app.db.base.listen import check_sessions

    # Two controllers would both lead, and announcements be lost, with nothing said of it.
    if problem := check_sessions(url):
        raise CliError(problem)


def on_database(work: "Callable[[Engine], Awaitable[Result]]") -> Result:
    """What some work on the settings' database returns. Raises CliError, also for another schema than ours."""
    from app.db.base import migrate

    with open_database(load_settings()) as url:
        # Statements written for another schema would fail in the middle, with a message that does not help.
        if problem := migrate.check(url):
            raise CliError(problem)
        return asyncio.run(_on_engine(url, work))


async def _on_engine(url: str, work: "Callable[[Engine], Awaitable[Result]]") -> Result:
    from app.db.base.engine import make_engine

    engine = make_engine(url, pool_size=2)
    try:
        return await work(engine)
    finally:
        await engine.dispose()


def has_embedded_database(settings: Settings) -> bool:
    """Whether an embedded database was ever made in the data directory."""
    from app.postgres.files import DataDirLayout

    return DataDirLayout(root=settings.data_dir.resolve()).cluster.exists()


def place_of_database(settings: Settings) -> str:
    """Where the database is, in words without secrets."""
    if settings.database_url is not None:
        return masked(settings.database_url.get_secret_value())
    return f"embedded in {settings.data_dir.resolve()}"


def masked(url: str) -> str:
    """A URL without its password."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username}:***@{host}"))


@contextmanager
def _errors_explained(place: str) -> Iterator[None]:
    from app.db.base.transaction import translated

    try:
        with translated():
            yield
    except Unavailable as error:
        # libpq repeats the reason for every address that it tried.
        reason = str(getattr(error.__cause__, "orig", error)).strip().splitlines()[0]
        hint = (
            "check PLIMSOLL_DATABASE_URL"
            if "PLIMSOLL_DATABASE_URL" in os.environ
            else "see `plimsoll doctor`"
        )
        raise CliError(
            f"the database does not answer ({place}): {reason}", hint=hint
        ) from error
