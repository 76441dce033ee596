"""Errors of the command.

CliError              something that the user should read: what went wrong, and what to do
├── ManifestErrors    manifests that cannot be used, each with file, line, field and remedy
                      (app.cli.common.manifest_files)
├── ControlPlaneUnreachable       no control plane answers
                                  (app.cli.common.client)
└── ApiProblem        the control plane answered with a problem (RFC 9457)                      (app.cli.common.client)

Wrong usage is `typer.BadParameter`, which ends with exit code 2.
"""

import sys


class CliError(Exception):
    """Ends the command with exit code 1; its text is shown as it is, the hint on a line of its own."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def show_error(error: Exception) -> None:
    """Print an error for people, on stderr."""
    # stdout is buffered in a pipe: without it the error would come before the lines that led to it.
    sys.stdout.flush()
    sys.stderr.write(f"Error: {error}\n")
    if isinstance(error, CliError) and error.hint:
        sys.stderr.write(f"Hint: {error.hint}\n")
