"""The plimsoll command, one file per group of verbs. This file loads nothing that `plimsoll --help` does not need.

Exit codes: 0 done, 1 failed (or, for `diff`, different), 2 wrong usage, 130 interrupted. Results go to stdout,
errors and questions to stderr.
"""

import errno
import gc
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.cli.common.context import CliContext


def main() -> None:
    """The console script `plimsoll`."""
    # Fits solve many small systems: more BLAS threads only wait for each other, and their number changes the rounding.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # What imports make stays: to look for garbage in it takes a tenth of the time to start. The root command ends this.
    gc.disable()
    try:
        code = run(sys.argv[1:])
        # Here, while the error can still be caught: at exit the interpreter would print a traceback of its own.
        sys.stdout.flush()
    except OSError as error:
        # Every other one is a fault of ours, and its traceback is wanted.
        if error.errno not in (errno.ENOSPC, errno.EPIPE):
            raise
        code = _unwritten(error)
    sys.exit(code)


def _unwritten(error: OSError) -> int:
    """Say that there is no room for what was printed; a reader that went away needs no word."""
    from app.cli.common.files import give_up_stdout

    give_up_stdout()
    if error.errno == errno.ENOSPC:
        sys.stderr.write(f"Error: cannot write to standard output: {error.strerror}\n")
    return 1


def run(arguments: Sequence[str], context: "CliContext | None" = None) -> int:
    """Run one command line and return its exit code. Tests pass a context with a fake transport."""
    from app.base.errors import PlimsollError
    from app.cli.common.context import CliContext
    from app.cli.common.errors import CliError, show_error
    from app.cli.root import root_command
    from solvers.types.errors import SolversError

    try:
        root_command().main(
            list(arguments),
            prog_name="plimsoll",
            obj=context or CliContext.of_process(),
        )
    except (CliError, PlimsollError, SolversError) as error:
        show_error(error)
        return 1
    except SystemExit as end:  # typer ends every command so, with its exit code
        return end.code if isinstance(end.code, int) else 1
    return 0
