"""`plimsoll doctor`: what is there and what is missing, on this machine and at the control plane."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from importlib import metadata
from pathlib import Path

import typer

from agents.base.plurals import counted
from app.base.settings import Settings
from app.cli.common.client import Api, dig, text
from app.cli.common.context import CliContext, cli_context
from app.cli.common.errors import ApiProblem, CliError
from app.cli.common.local import (
    has_embedded_database,
    load_settings,
    masked,
    open_database,
    place_of_database,
)
from app.cli.common.options import Output
from app.cli.common.output import (
    BAD,
    FAINT,
    GOOD,
    WARN,
    ColouredCell,
    Format,
    show_json,
    show_table,
    show_yaml,
)

MIN_PYTHON = (3, 11)
SOLVERS = ("pulp", "cvxpy", "ortools.sat.python.cp_model", "highspy", "numba")
IMPORT_LIMIT_S = 60.0
# HTTP dates have whole seconds, and an answer travels for up to one more.
MAX_SKEW_S = 2.0
MIN_FREE_GIB = 2.0


class CheckVerdict(StrEnum):
    """How one check came out."""

    OK = "ok"
    ABSENT = "absent"
    """Not there, which is fine for many uses."""
    WARNING = "warning"
    BROKEN = "broken"


STYLES = {
    CheckVerdict.OK: GOOD,
    CheckVerdict.ABSENT: FAINT,
    CheckVerdict.WARNING: WARN,
    CheckVerdict.BROKEN: BAD,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFinding:
    """One check's outcome, with the remedy where there is one."""

    check: str
    verdict: CheckVerdict
    detail: str


def doctor(context: typer.Context, output: Output = Format.TABLE) -> None:
    """Find out what is missing on this machine.

    Also checks the control plane. Exit code 1 if anything is broken; what is absent may not be needed here.
    """
    cli, settings = cli_context(context), load_settings()
    checks: tuple[Callable[[], Iterator[ServerFinding]], ...] = (
        _python,
        _solvers,
        _postgres,
        lambda: _database(settings),
        lambda: control_plane_findings(cli),
        _gpus,
        lambda: _disk(settings.data_dir),
    )
    # In the order in which one would install: each check may rest on those above it.
    findings = [finding for check in checks for finding in check()]
    if output is Format.JSON:
        show_json({"findings": [_as_dict(finding) for finding in findings]})
    elif output is Format.YAML:
        show_yaml([_as_dict(finding) for finding in findings])
    else:
        rows = [
            (f.check, ColouredCell(text=f.verdict, style=STYLES[f.verdict]), f.detail)
            for f in findings
        ]
        show_table(["check", "verdict", "detail"], rows)
    broken = sum(finding.verdict is CheckVerdict.BROKEN for finding in findings)
    if broken:
        raise CliError(f"{counted(broken, 'check')} failed")


def _finding(check: str, verdict: CheckVerdict, detail: str) -> ServerFinding:
    return ServerFinding(check=check, verdict=verdict, detail=detail)


def _well(check: str, detail: str) -> ServerFinding:
    return _finding(check, CheckVerdict.OK, detail)


def _absent(check: str, detail: str) -> ServerFinding:
    return _finding(check, CheckVerdict.ABSENT, detail)


def _warning(check: str, detail: str) -> ServerFinding:
    return _finding(check, CheckVerdict.WARNING, detail)


def _broken(check: str, detail: str) -> ServerFinding:
    return _finding(check, CheckVerdict.BROKEN, detail)


def _as_dict(finding: ServerFinding) -> dict[str, str]:
    return {
        "check": finding.check,
        "verdict": finding.verdict.value,
        "detail": finding.detail,
    }


def _python() -> Iterator[ServerFinding]:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= MIN_PYTHON:
        yield _well("python", f"{found} at {sys.executable}")
    else:
        yield _broken("python", f"{found}; 3.11 or newer is needed")


def _solvers() -> Iterator[ServerFinding]:
    """Pins, and whether the libraries load together; in a process of its own, since a wrong mix may crash."""
    wrong = [
        f"{name} {has or 'missing'} (needs {needs})"
        for name, needs, has in _pins()
        if has != needs
    ]
    if wrong:
        remedy = "; reinstall with `make install`"
        yield _broken("solver pins", ", ".join(wrong) + remedy)
    else:
        found = ", ".join(f"{name} {has}" for name, _, has in _pins())
        yield _well("solver pins", found)
    # Right versions may still clash: two libraries that each bring their own build of a third.
    problem = import_problem(SOLVERS)
    names = ", ".join(name.partition(".")[0] for name in SOLVERS)
    yield _finding(
        "solvers load",
        CheckVerdict.BROKEN if problem else CheckVerdict.OK,
        f"{problem}; reinstall with `make install`" if problem else names,
    )


def import_problem(modules: tuple[str, ...]) -> str | None:
    """Why a fresh process cannot import them, in this order; None when it can."""
    script = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"
    command = [sys.executable, "-c", script, *modules]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=IMPORT_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not imported within {IMPORT_LIMIT_S:.0f} s"
    # As where Python lies in a folder of another user, such as root's home.
    except OSError as error:
        return f"{sys.executable} cannot be started: {error.strerror}"
    if ended.returncode == 0:
        return None
    return (
        # The last line of a traceback is the error; a native crash leaves none.
        ended.stderr.strip().splitlines() or [f"crashed with status {ended.returncode}"]
    )[-1]


def _pins() -> list[tuple[str, str, str | None]]:
    """Exactly pinned requirements of this package: name, wanted and installed version."""
    try:
        requirements = metadata.requires("plimsoll") or []
    except metadata.PackageNotFoundError:
        return []
    matches = (
        # Exact pins only: a range has no single version to compare with.
        re.match(r"([A-Za-z0-9_-]+)==([^;\s]+)", requirement)
        for requirement in requirements
    )
    return [(match[1], match[2], _installed(match[1])) for match in matches if match]


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _postgres() -> Iterator[ServerFinding]:
    from app.postgres import server as postgres

    try:
        binaries = postgres.find_binaries()
    except postgres.PostgresError as error:
        yield _absent("postgresql", str(error))
        return
    yield _well("postgresql", f"{binaries.version} in {binaries.bin_dir}")


def _database(settings: Settings) -> Iterator[ServerFinding]:
    place = place_of_database(settings)
    if settings.database_url is None:
        if not has_embedded_database(settings):
            detail = f"none in {settings.data_dir.resolve()}; `plimsoll up` creates one"
            yield _absent("database", detail)
            return
        from app.postgres import server as postgres

        # Looking must not start a server that the operator stopped.
        if postgres.attach(settings.data_dir) is None:
            detail = f"{place}, not running; `plimsoll up` starts it"
            yield _absent("database", detail)
            return
    # Here: most machines have no database to look into, and its libraries take half a second.
    from app.db.base import migrate
    from app.db.base.listen import check_sessions

    try:
        with open_database(settings) as url:
            problem = check_sessions(url) or migrate.check(url)
    except CliError as error:
        yield _broken("database", f"{error}; {error.hint}")
        return
    yield _finding(
        "database",
        CheckVerdict.BROKEN if problem else CheckVerdict.OK,
        f"{place}: {problem}" if problem else f"{place} at {migrate.head()}",
    )


def control_plane_findings(cli: CliContext) -> Iterator[ServerFinding]:
    """How the control plane says it is, whether both clocks agree, and what the token allows."""
    url = cli.url()
    try:
        with Api(cli) as api:
            status, health, server_time = api.probe("/readyz?verbose=true")
            yield _readiness(
                status, health, f"{masked(url.value or '')} ({url.origin})"
            )
            if server_time is not None:
                yield _clock(server_time)
            # A control plane that is not ready cannot look the token up.
            if status == 200:
                yield _token(api, cli)
    except CliError as error:
        yield _absent("control plane", f"{error}; {error.hint}")


def _readiness(status: int, health: dict[str, object], place: str) -> ServerFinding:
    checks = dig(health, "checks")
    # Some other server's page may well answer with JSON.
    if "status" not in health or not isinstance(checks, dict):
        detail = (
            f"{place} answers {status} to /readyz; is this the address of Plimsoll?"
        )
        return _broken("control plane", detail)
    problems = [
        f"{name}: {problem}" for name, problem in checks.items() if problem != "ok"
    ]
    if problems:
        return _broken("control plane", f"{place}: {'; '.join(problems)}")
    return _well("control plane", f"{place}: {', '.join(checks)} ok")


def _clock(server_time: datetime) -> ServerFinding:
    """HTTP dates have whole seconds, and the answer travelled: up to 2 s mean nothing."""
    skew_s = (datetime.now(UTC) - server_time).total_seconds()
    if abs(skew_s) <= MAX_SKEW_S:
        detail = f"within {MAX_SKEW_S:g} s of the control plane's"
        return _well("clock", detail)
    detail = f"{skew_s:+.0f} s from the control plane's; synchronise both with NTP"
    return _warning("clock", detail)


def _token(api: Api, cli: CliContext) -> ServerFinding:
    try:
        caller = api.get("/api/v1/auth/whoami")
    except ApiProblem as problem:
        return _warning("token", f"{problem.detail}; {problem.hint}")
    origin = cli.token().origin
    detail = f"{text(caller, 'name')} of scope {text(caller, 'scope')} ({origin})"
    return _well("token", detail)


def _gpus() -> Iterator[ServerFinding]:
    """Only a node with real GPUs needs them."""
    smi = shutil.which("nvidia-smi")
    # No GPU is no fault: most of a fleet's control planes have none.
    if smi is None:
        yield _absent("nvidia driver", "no nvidia-smi; agents can simulate GPUs")
    else:
        yield _driver(smi)
    mps = shutil.which("nvidia-cuda-mps-control")
    detail = (
        mps
        or "no nvidia-cuda-mps-control; needed to give replicas of real GPUs their SM percent"
    )
    yield _finding(
        "nvidia mps", CheckVerdict.OK if mps else CheckVerdict.ABSENT, detail
    )


def _driver(smi: str) -> ServerFinding:
    command = [smi, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=20.0, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return _warning("nvidia driver", f"{smi} does not answer: {error}")
    if answer.returncode != 0:
        detail = (
            f"{smi} failed: {(answer.stdout + answer.stderr).strip().splitlines()[0]}"
        )
        return _warning("nvidia driver", detail)
    return _well("nvidia driver", "; ".join(answer.stdout.strip().splitlines()))


def _disk(data_dir: Path) -> Iterator[ServerFinding]:
    place = data_dir.resolve()
    # The folder may be one that `plimsoll up` is still to make: its disk is that of the nearest parent.
    while not place.exists():
        place = place.parent
    free_gib = shutil.disk_usage(place).free / 2**30
    detail = f"{free_gib:.1f} GiB free under {place}"
    if free_gib < MIN_FREE_GIB:
        yield _warning("disk", f"{detail}; the database needs room to grow")
    else:
        yield _well("disk", detail)
