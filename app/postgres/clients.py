"""PostgreSQL's own programs for copies of a database: pg_dump, pg_restore and psql, of the server's major version.

Passwords go by the environment, which other users of the machine cannot read, and never by a command line.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from app.postgres.process import BinariesMissing, PostgresError, program_directories

_PROGRAMS = ("pg_dump", "pg_restore", "psql")


class CopyFailed(PostgresError):
    """One of the programs failed; the message has its own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPrograms:
    """A directory with the programs, and the database that they work on."""

    bin_dir: Path
    conninfo: str

    def dump(self, file: Path) -> None:
        """Write the database, as it is at one moment, to a file in pg_dump's custom format. Raises CopyFailed."""
        # A change of the schema meanwhile is not waited for without end.
        options = ["--format=custom", "--no-owner", "--lock-wait-timeout=30s"]
        self._run(["pg_dump", *options, f"--file={file}", self._without_password()])

    def rows_of(self, file: Path, tables: Sequence[str]) -> dict[str, dict[str, str]]:
        """The first row of each of these tables in a dump, columns by name. Raises CopyFailed: it is no dump."""
        wanted = [f"--table={table}" for table in tables]
        command = ["pg_restore", "--data-only", "--file=-", *wanted, str(file)]
        return _first_rows(self._run(command))

    def restore(self, file: Path, *, before: str) -> None:
        """Run the SQL `before`, then the dump, in one transaction: all of it or nothing. Raises CopyFailed."""
        script = ["--no-owner", "--no-privileges", "--file=-", str(file)]
        quiet = [
            "--no-psqlrc",
            "--quiet",
            "--set=ON_ERROR_STOP=1",
            "--output=/dev/null",
        ]
        with subprocess.Popen(
            [self._path("psql"), *quiet, f"--dbname={self._without_password()}"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment(),
        ) as psql:
            assert psql.stdin is not None
            problem = self._feed(psql.stdin, script, before)
            _, said = psql.communicate()
        # psql's own error first: it ended, and made pg_restore fail with a broken pipe.
        if psql.returncode != 0 or problem:
            raise CopyFailed(said.decode(errors="replace").strip() or problem)

    def _feed(self, psql: IO[bytes], script: Sequence[str], before: str) -> str:
        """What pg_restore made of the dump, to psql; returns what was wrong, and then commits nothing."""
        try:
            psql.write(f"BEGIN;\n{before}\n".encode())
            psql.flush()
            made = subprocess.run(
                [self._path("pg_restore"), *script],
                stdout=psql,
                stderr=subprocess.PIPE,
                env=self._environment(),
                check=False,
            )
            if made.returncode != 0:
                return made.stderr.decode(errors="replace").strip()
            psql.write(b"COMMIT;\n")
            psql.flush()
        except BrokenPipeError:
            return "psql ended early"
        return ""

    def _run(self, command: Sequence[str]) -> str:
        program, *arguments = command
        made = subprocess.run(
            [self._path(program), *arguments],
            capture_output=True,
            text=True,
            env=self._environment(),
            check=False,
        )
        if made.returncode != 0:
            raise CopyFailed(made.stderr.strip())
        return made.stdout

    def _path(self, program: str) -> str:
        return str(self.bin_dir / program)

    def _without_password(self) -> str:
        known = conninfo_to_dict(self.conninfo)
        return make_conninfo("", **{**known, "password": None})

    def _environment(self) -> dict[str, str]:
        password = conninfo_to_dict(self.conninfo).get("password")
        return {**os.environ, **({"PGPASSWORD": str(password)} if password else {})}


def find_clients(conninfo: str) -> ClientPrograms:
    """The programs of the major version of the server behind `conninfo`. Raises BinariesMissing, which says how to get
    them, and psycopg.OperationalError where nothing answers."""
    with psycopg.connect(conninfo, connect_timeout=5) as connection:
        major = str(connection.info.server_version // 10000)
    on_path = shutil.which("pg_dump")
    debian = Path(f"/usr/lib/postgresql/{major}/bin")
    directories = [debian, *program_directories()]
    # What stands on the PATH comes first: it is what the operator chose.
    if on_path is not None:
        directories.insert(0, Path(on_path).parent)
    for directory in directories:
        if _major(directory) == major:
            return ClientPrograms(bin_dir=directory, conninfo=conninfo)
    raise BinariesMissing(
        f"no {', '.join(_PROGRAMS)} of version {major}, the server's, found in: "
        f"{', '.join(map(str, directories))}; install them (Debian: `apt install postgresql-client-{major}`) "
        "or put them on the PATH"
    )


def _major(directory: Path) -> str:
    """The major version of the programs in a directory; empty where one is missing or does not run."""
    if not all(os.access(directory / program, os.X_OK) for program in _PROGRAMS):
        return ""
    try:
        answer = subprocess.run(
            [str(directory / "pg_dump"), "--version"],
            capture_output=True,
            text=True,
            timeout=10.0,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    # "pg_dump (PostgreSQL) 18.6"
    parts = answer.stdout.split()
    return parts[2].split(".")[0] if len(parts) > 2 else ""


def _first_rows(script: str) -> dict[str, dict[str, str]]:
    """From COPY blocks: a header with table and columns, a line of values divided by tabs for each row."""
    found: dict[str, dict[str, str]] = {}
    lines = iter(script.splitlines())
    for line in lines:
        if line.startswith("COPY ") and line.endswith(") FROM stdin;"):
            table, _, columns = line[5 : -len(") FROM stdin;")].partition(" (")
            values = next(lines, "\\.")
            if values != "\\.":
                names = columns.split(", ")
                found[table.rpartition(".")[2]] = dict(
                    zip(names, values.split("\t"), strict=True)
                )
    return found
