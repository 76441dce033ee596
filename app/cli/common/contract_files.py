"""Problem and Plan files (the contract's versions 1 and 2), also gzipped; `-` = stdin."""

import gzip
import sys
import zlib
from pathlib import Path

from app.cli.common.errors import CliError
from app.cli.common.files import STDIO
from solvers.types.documents.plan_json import plan_from_json
from solvers.types.documents.problem_json import problem_from_json
from solvers.types.errors import InvalidInput
from solvers.types.outcome import PlanReport
from solvers.types.plan import Plan
from solvers.types.problem import Problem

_GZIP = b"\x1f\x8b"
"""What gzipped files begin with."""


def read_problem(path: Path) -> Problem:
    """A Problem file. Raises CliError, which names the field."""
    try:
        return problem_from_json(_read(path))
    except InvalidInput as error:
        raise CliError(f"{_name(path)}: {error}") from error


def read_uncut_problem(path: Path, command: str) -> Problem:
    """The same for a command that knows nothing of slices. Raises CliError."""
    problem = read_problem(path)
    for gpu_type in problem.gpu_types:
        if gpu_type.slices:
            raise CliError(
                f"{_name(path)}: {command} knows whole GPUs only, and {gpu_type.name} may be cut into slices",
                hint="`plimsoll plan` and `plimsoll policy compare` take it",
            )
    return problem


def read_plan(path: Path) -> tuple[Plan, PlanReport]:
    """A Plan file. Raises CliError, which names the field."""
    try:
        return plan_from_json(_read(path))
    except InvalidInput as error:
        raise CliError(f"{_name(path)}: {error}") from error


def _name(path: Path) -> str:
    return "stdin" if path == STDIO else str(path)


def _read(path: Path) -> bytes:
    try:
        # By its first bytes, not by its name: stdin has none.
        content = sys.stdin.buffer.read() if path == STDIO else path.read_bytes()
        return gzip.decompress(content) if content.startswith(_GZIP) else content
    except (OSError, EOFError, zlib.error) as error:
        raise CliError(
            f"cannot read {_name(path)}: {getattr(error, 'strerror', None) or error}"
        ) from error
