"""How commands that run for days bear that somebody does not answer: they say so once, and ask again, less often."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from httpx2 import codes

from app.cli.common.client import ApiProblem, ControlPlaneUnreachable
from app.cli.common.errors import CliError, show_error

MAX_WAIT_S = 60.0

Answer = TypeVar("Answer")


@dataclass(slots=True, kw_only=True)
class Patience:
    """How long to wait before the next question to one server."""

    period_s: float
    """Between two questions while it answers."""
    takes_all: bool = False
    """Whether every error may pass, as of a server that answered well before."""
    _failures: int = field(default=0, init=False)
    """In a row."""

    @property
    def wait_s(self) -> float:
        """Twice as long after each failure, up to a minute."""
        longest_s = max(MAX_WAIT_S, self.period_s)
        # An exponent without a bound would overflow within a day.
        return min(longest_s, self.period_s * 2.0 ** min(self._failures, 16))

    def ask(
        self, sleep: Callable[[float], None], question: Callable[[], Answer]
    ) -> Answer:
        """The answer after the next wait, or after as many as it takes. Raises CliError for what will not pass."""
        while True:
            sleep(self.wait_s)
            try:
                answer = question()
            except CliError as error:
                self.failed(error)
            else:
                self.answered()
                return answer

    def failed(self, error: CliError) -> None:
        """Say the first of several in a row. Raises the error where it will not pass."""
        is_first = not self._failures
        self.bear(error)
        if is_first:
            show_error(CliError(f"{error}; asked again until it answers"))

    def bear(self, error: CliError) -> None:
        """The same without a word."""
        if not (self.takes_all or may_pass(error)):
            raise error
        self._failures += 1

    def answered(self) -> None:
        """It does again."""
        self._failures = 0


def may_pass(error: CliError) -> bool:
    """Whether it may work a moment later."""
    if isinstance(error, ApiProblem):
        busy = (codes.REQUEST_TIMEOUT, codes.TOO_MANY_REQUESTS)
        return error.status in busy or error.status >= codes.INTERNAL_SERVER_ERROR
    return isinstance(error, ControlPlaneUnreachable)
