"""`plimsoll-agent` without the cost of a start: called in this process or, where it is to be killed, in a copy of it.

ended = agent("mig", "list")        # ended.code, ended.out, ended.err
killable(work)                      # exit code of a copy of this process; negative: the signal that ended it
"""

import io
import multiprocessing
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

from agents.main import main
from tests.waiting import PATIENCE_S

COPIES = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


def agent(*words: str) -> Ended:
    """What the command ends with."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as end:
            assert isinstance(end.code, int)
            code = end.code
    return Ended(code, out.getvalue(), err.getvalue())


def killable(work: Callable[[], object]) -> int:
    """How a copy of this process ends that does only that."""
    copy = COPIES.Process(target=work)
    copy.start()
    copy.join(PATIENCE_S)
    assert copy.exitcode is not None, "it did not end"
    return copy.exitcode
