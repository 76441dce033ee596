"""`plimsoll backup` and `plimsoll restore`: the whole database in one file, and back."""

import asyncio
import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from app.base.errors import Conflict
from app.base.version import program_version
from app.cli.common.errors import CliError
from app.cli.common.local import load_settings, open_database, place_of_database
from app.cli.common.output import good, show_line
from app.db.base import migrate
from app.db.base.engine import make_engine
from app.db.base.listen import conninfo
from app.db.base.transaction import Engine
from app.db.operations import backups
from app.postgres.clients import ClientPrograms, CopyFailed, find_clients
from app.postgres.process import PostgresError

BackupFile = Annotated[Path, typer.Argument(metavar="FILE", help="The backup")]


def backup(file: BackupFile) -> None:
    """Write a consistent snapshot of the database to a file, while everything keeps running.

    The file is pg_dump's custom format, so that `pg_restore` reads it, too. It holds secrets: keep it like a password.
    """
    if file.exists():
        raise CliError(
            f"{file} exists already",
            hint="choose a new file name, such as one with the date",
        )
    settings = load_settings()
    with open_database(settings) as url:
        if problem := migrate.check(url):
            raise CliError(problem)
        asyncio.run(_backup(url, file))
    size_mib = file.stat().st_size / 2**20
    show_line(good(f"{place_of_database(settings)} is in {file} ({size_mib:.1f} MiB)."))


def restore(
    file: BackupFile,
    *,
    replace: Annotated[
        bool, typer.Option("--replace", help="Delete what the database holds now")
    ] = False,
) -> None:
    """Load a backup into the database, completely or not at all.

    No control plane may run on the database; agents may. Afterwards nodes follow the restored control plane's next
    plan, whatever newer one they hold.
    """
    if not file.is_file():
        raise CliError(f"there is no file {file}")
    settings = load_settings()
    with open_database(settings, create=True) as url:
        done = asyncio.run(_restore(url, file, may_replace=replace))
    show_line(
        good(
            f"{place_of_database(settings)} is as it was at {done.contents.made_at} "
            f"(incarnation {done.contents.incarnation}, revision {done.contents.revision})."
        )
    )
    show_line(
        f"Next: start `plimsoll serve`. Its first plan has generation {done.generation + 1} and replaces what nodes "
        "hold; `plimsoll get nodes` shows when they follow. Everything after the backup is lost: services, tokens and "
        "policies that were changed since must be changed again."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupContents:
    """What a backup says of itself."""

    revision: str
    incarnation: str
    made_at: str
    made_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredDatabase:
    """What a restore did."""

    contents: BackupContents
    generation: int


async def _backup(url: str, file: Path) -> None:
    clients = _clients(url)
    engine = _engine(url)
    # A file of that name is complete: its presence shows that the copying ended well.
    unfinished = file.with_name(f"{file.name}.unfinished")
    try:
        await backups.note_backup(engine, program_version())
        _make_private(unfinished)
        await asyncio.to_thread(clients.dump, unfinished)
        _sync(unfinished)
        unfinished.rename(file)
        await backups.note_made(engine, file.name)
    except CopyFailed as error:
        raise CliError(f"pg_dump failed: {error}") from error
    except OSError as error:
        raise CliError(f"{file} cannot be written: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        await engine.dispose()


async def _restore(url: str, file: Path, *, may_replace: bool) -> RestoredDatabase:
    clients = _clients(url)
    contents = await asyncio.to_thread(_contents, clients, file)
    engine = _engine(url)
    try:
        async with backups.nobody_connected(engine):
            held = await backups.load_generation(engine)
            if held is not None and not may_replace:
                raise CliError(
                    "the database is not empty",
                    hint="`--replace` deletes what it holds; back that up first, if anybody may need it",
                )
            await asyncio.to_thread(clients.restore, file, before=backups.EMPTY)
            # A backup of an older program: its schema is brought to this one's, as on any upgrade.
            await asyncio.to_thread(migrate.upgrade, url)
            generation = await backups.finish(
                engine,
                held=held or 0,
                reason=f"restored from {file.name}, which was made at {contents.made_at} "
                f"by version {contents.made_by}",
                after={"revision": contents.revision, "from": contents.incarnation},
            )
    except Conflict as error:
        raise CliError(str(error)) from error
    except CopyFailed as error:
        raise CliError(
            f"nothing was changed, {file} cannot be restored: {error}"
        ) from error
    finally:
        await engine.dispose()
    return RestoredDatabase(contents=contents, generation=generation)


def _contents(clients: ClientPrograms, file: Path) -> BackupContents:
    """What the backup says of itself. Raises CliError where it is none, or one of a newer program."""
    try:
        rows = clients.rows_of(file, backups.MANIFEST)
        cluster, revision = rows["cluster"], rows["alembic_version"]["version_num"]
    except (CopyFailed, KeyError) as error:
        raise CliError(
            f"{file} is not a backup of Plimsoll: {error}",
            hint="`plimsoll backup FILE` and `pg_dump --format=custom` create one",
        ) from error
    if why := migrate.why_unknown(revision):
        raise CliError(
            f"{file} cannot be restored: {why.replace('the database', 'it')}"
        )
    # A dump that somebody made by pg_dump alone, or that an older program made, does not say all of it.
    unknown = "a time that it does not say"
    made_at = cluster.get("backed_up_at", "\\N").replace("\\N", unknown)
    return BackupContents(
        revision=revision,
        incarnation=cluster.get("incarnation", "unknown"),
        made_at=made_at,
        made_by=cluster.get("backed_up_by", "\\N").replace("\\N", "unknown"),
    )


def _make_private(file: Path) -> None:
    """A new empty file that only its owner reads: a backup holds hashes of tokens and secrets of webhooks."""
    # What an earlier run left has its own rights, and a link leads to somebody else's file.
    file.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    os.close(os.open(file, flags, 0o600))


def _clients(url: str) -> ClientPrograms:
    try:
        return find_clients(conninfo(url))
    except PostgresError as error:
        raise CliError(str(error)) from error


def _engine(url: str) -> Engine:
    return make_engine(url, pool_size=2, application="plimsoll-backup")


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
