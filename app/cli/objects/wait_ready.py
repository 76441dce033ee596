"""Waiting until services serve, with a line on stderr for each step of the way."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.cli.common.client import Api, documents, number, text
from app.cli.common.context import CliContext
from app.cli.common.errors import CliError
from app.cli.common.kinds import find_kind
from app.cli.common.output import ColouredCell, faint, good, show_line, warn
from app.cli.objects.wait import behind, find_condition

POLL_S = 0.5
PASSING = frozenset({"", "NotPlanned", "NoTarget", "RollingOut", "SolverOutOfTime"})
"""Reasons that pass by themselves; all others a person has to do something about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyLook:
    """What a service's condition Ready says."""

    is_ready: bool
    reason: str
    message: str

    @property
    def is_passing(self) -> bool:
        """Not ready, and it takes nothing but time."""
        return not self.is_ready and self.reason in PASSING

    @property
    def is_stuck(self) -> bool:
        """Not ready, and somebody has to do something."""
        return not self.is_ready and self.reason not in PASSING


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
        looks = {name: _readiness(api, name) for name in waiting}
        passed_s = context.monotonic_s() - began_s
        _report(looks, said, passed_s)
        failed += [name for name, look in looks.items() if look.is_stuck]
        waiting = [name for name, look in looks.items() if look.is_passing]
        if passed_s >= limit_s:
            break
        if waiting:
            context.sleep(POLL_S)
    _end(failed, waiting, limit_s, must=must)


def _report(
    looks: Mapping[str, ReadyLook], said: dict[str, str], passed_s: float
) -> None:
    """Say what is new. `said`: what was said of each service last."""
    for name, look in looks.items():
        if look.is_ready:
            _say(good(f"{name} is ready after {passed_s:.1f} s: {look.message}"))
        elif look.is_stuck:
            _say(warn(f"{name} is not ready: {look.message}"))
        # Once, not at each look: most looks see the same.
        elif said.get(name) != look.message:
            said[name] = look.message
            _say(faint(f"waiting for {name}: {look.message}"))


def _end(
    failed: Sequence[str], waiting: Sequence[str], limit_s: float, *, must: bool
) -> None:
    late = [*failed, *waiting]
    if not late:
        return
    said = [f"{name} needs your attention" for name in failed]
    if waiting:
        said.append(f"{', '.join(waiting)} not ready within {limit_s:g} s")
    missed = f"{'; '.join(said)}; all changes were saved"
    hint = f"`plimsoll describe service {late[0]}` says why"
    if must:
        raise CliError(missed, hint=hint)
    _say(warn(f"{missed}; {hint}"))


def _readiness(api: Api, name: str) -> ReadyLook:
    item = api.get(find_kind("Service").one(name))
    ready = find_condition(item, "Ready")
    look = ReadyLook(
        is_ready=text(ready, "status") == "True",
        reason=text(ready, "reason"),
        message=text(ready, "message") or "the control plane has not checked it yet",
    )
    # A plan that waits for approval is of the newest manifest; all else is said of the plan in force.
    if (older := behind(item)) and look.reason != "WaitsForApproval":
        message = older if look.is_ready else look.message
        return ReadyLook(is_ready=False, reason="", message=message)
    return _unless_starting(api, name, look)


def _unless_starting(api: Api, name: str, look: ReadyLook) -> ReadyLook:
    """The same, but not ready while the nodes have the plan and none of its replicas has started yet."""
    if look.reason != "Serving":
        return look
    path = f"{find_kind('Service').one(name)}/endpoints"
    nodes = documents(api.get(path), "nodes")
    if any(number(node, "ready_replicas") for node in nodes):
        return look
    where = ", ".join(text(node, "node") for node in nodes)
    return ReadyLook(
        is_ready=False, reason="", message=f"its replicas start on {where}"
    )


def _say(cell: ColouredCell) -> None:
    show_line(cell, stream=sys.stderr)
