"""Waiting until services serve, with a line on stderr for each step of the way."""

import sys
from collections.abc import Sequence

from app.cli.common.client import Api, documents, text
from app.cli.common.context import CliContext
from app.cli.common.errors import CliError
from app.cli.common.kinds import find_kind
from app.cli.common.output import ColouredCell, faint, good, show_line, warn

POLL_S = 0.5
PASSING = frozenset({"", "NotPlanned", "NoTarget", "RollingOut", "SolverOutOfTime"})
"""Reasons that pass by themselves; all others a person has to do something about."""


def wait_ready(
    api: Api, context: CliContext, names: Sequence[str], *, limit_s: float, must: bool
) -> None:
    """Wait until each of these services is ready, or cannot become so by itself.

    `must`: raise CliError where one is not; otherwise it is only said.
    """
    began_s = context.monotonic_s()
    said: dict[str, str] = {}
    waiting = list(names)
    failed: list[str] = []
    while waiting:
        for name in tuple(waiting):
            status, reason, message = _readiness(api, name)
            passed_s = context.monotonic_s() - began_s
            if status == "True":
                waiting.remove(name)
                _say(good(f"{name} is ready after {passed_s:.1f} s: {message}"))
            elif reason not in PASSING:
                waiting.remove(name)
                failed.append(name)
                _say(warn(f"{name} is not ready: {message}"))
            # Once, not at each look: most looks see the same.
            elif said.get(name) != message:
                said[name] = message
                _say(faint(f"waiting for {name}: {message}"))
        if context.monotonic_s() - began_s >= limit_s:
            break
        if waiting:
            context.sleep(POLL_S)
    _end(failed, waiting, limit_s, must=must)


def _end(
    failed: Sequence[str], waiting: Sequence[str], limit_s: float, *, must: bool
) -> None:
    late = [*failed, *waiting]
    if not late:
        return
    words = f"{', '.join(late)} not ready within {limit_s:g} s; everything was written"
    hint = f"`plimsoll describe service {late[0]}` says why"
    if must:
        raise CliError(words, hint=hint)
    _say(warn(f"{words}; {hint}"))


def _readiness(api: Api, name: str) -> tuple[str, str, str]:
    """Status, reason and message of the condition Ready."""
    seen = api.get(find_kind("Service").one(name))
    for condition in documents(seen, "status.conditions"):
        if text(condition, "type") == "Ready":
            return (
                text(condition, "status"),
                text(condition, "reason"),
                text(condition, "message"),
            )
    return "Unknown", "", "the control plane has not looked at it yet"


def _say(cell: ColouredCell) -> None:
    show_line(cell, stream=sys.stderr)
