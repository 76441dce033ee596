"""`plimsoll wait`: until objects are as somebody wants them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Protocol, get_args

import typer
from httpx2 import codes

from app.cli.common.client import Api, Document, documents, number, text
from app.cli.common.context import CliContext, cli_context
from app.cli.common.durations import parse_timeout
from app.cli.common.errors import ApiProblem, CliError, show_error
from app.cli.common.kinds import NamedObject, parse_objects
from app.cli.common.output import show_line
from app.cli.objects.completion import complete_references
from app.cli.objects.get import fetch_one
from app.cli.objects.show.jsonpath import JsonPath, parse_jsonpath
from app.store.plan_states import ENDED, PLAN_STATES

POLL_S = 1.0
EXAMPLES = "condition=Ready, condition=Ready=False, state=finished, delete or jsonpath='{.spec.mode}'=auto"

USUAL_STATES = {"Task": "finished", "Plan": "target"}
"""What people wait for, by kind; other kinds have conditions, which say more."""
LAST_STATES = {"finished", "cancelled", *ENDED}
"""Nothing follows them, so that waiting for another one would never end."""


class Goal(Protocol):
    """What is waited for."""

    def check(self, kind: str) -> None:
        """Raises BadParameter where objects of that kind can never be so."""

    def is_met(self, item: Document | None) -> bool:
        """Whether the object, None = there is none, is so. Raises CliError where it never will be."""

    def describe(self, item: Document | None) -> str:
        """How the object is instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionGoal:
    """A condition has a status."""

    type: str
    status: str

    def check(self, kind: str) -> None:
        """Refuse kinds without conditions, with what they have."""
        if state := USUAL_STATES.get(kind):
            raise typer.BadParameter(
                f"a {kind} has no conditions; wait for its state: --for state={state}"
            )

    def is_met(self, item: Document | None) -> bool:
        """Names in any case, as kubectl takes them; what is said of an older manifest does not count."""
        return self._is_said(item) and not behind(item)

    def describe(self, item: Document | None) -> str:
        """With the reason, which says what to do."""
        if self._is_said(item):
            return behind(item)
        found = find_condition(item, self.type)
        if found:
            return f"{self.type} is {text(found, 'status')} ({text(found, 'reason')}): {text(found, 'message')}"
        conditions = documents(item, "status.conditions")
        types = ", ".join(text(each, "type") for each in conditions) or "none"
        return f"it has no condition {self.type}; those it has are {types}"

    def _is_said(self, item: Document | None) -> bool:
        found = find_condition(item, self.type)
        return text(found, "status").lower() == self.status.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateGoal:
    """A task or a plan is in a state."""

    state: str

    def check(self, kind: str) -> None:
        """Refuse other kinds, and states that the kind does not have."""
        if kind not in USUAL_STATES:
            raise typer.BadParameter(
                f"a {kind} has no state to wait for; write --for {EXAMPLES}"
            )
        states = _states(kind)
        if self.state not in states:
            raise typer.BadParameter(
                f"a {kind} is never {self.state!r}; its states are {', '.join(states)}"
            )

    def is_met(self, item: Document | None) -> bool:
        """An object that has ended otherwise is not waited for."""
        state = self._state(item)
        if state in LAST_STATES and state != self.state:
            raise CliError(f"it is {state} and will not become {self.state}")
        return state == self.state

    def describe(self, item: Document | None) -> str:
        """The state that it has."""
        return f"it is {self._state(item) or 'in no state'}"

    def _state(self, item: Document | None) -> str:
        return text(item, "status.state") or text(item, "state")


def _states(kind: str) -> tuple[str, ...]:
    if kind == "Plan":
        return PLAN_STATES
    # Imported late: it brings NumPy, which a wait for a service does not need.
    from app.store.task_book import TaskPhase

    return get_args(TaskPhase)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonPathGoal:
    """A template prints a text, or anything where none is given."""

    path: JsonPath
    value: str | None

    def check(self, kind: str) -> None:
        """Any kind may have it."""

    def is_met(self, item: Document | None) -> bool:
        """Compares what would be printed."""
        printed = self.path.render(item)
        return bool(printed) if self.value is None else printed == self.value

    def describe(self, item: Document | None) -> str:
        """What is printed now."""
        return f"it prints {self.path.render(item)!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGoal:
    """The object is gone."""

    def check(self, kind: str) -> None:
        """Any kind may be gone."""

    def is_met(self, item: Document | None) -> bool:
        """None: there is no such object."""
        return item is None

    def describe(self, item: Document | None) -> str:  # noqa: ARG002
        """Only said of what is there."""
        return "it is still there"


def wait(
    context: typer.Context,
    objects: Annotated[
        list[str],
        typer.Argument(
            metavar="KIND/NAME...",
            help="Objects; KIND NAME... works as well",
            autocompletion=complete_references,
        ),
    ],
    *,
    wanted: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="WHAT",
            help="condition=NAME[=VALUE], state=STATE of tasks and plans, jsonpath='{PATH}'[=VALUE], or delete",
        ),
    ],
    timeout: Annotated[
        str,
        typer.Option(
            metavar="DURATION", help="For all objects together; 0 = check once"
        ),
    ] = "30s",
) -> None:
    """Wait until objects reach a condition or a state, or are gone.

    Exits with 0 once all of them do, and with 1 if one does not in time or no longer can.

    Example: plimsoll wait service/chat --for condition=Ready --timeout 60s
    """
    goal = parse_goal(wanted)
    named = parse_objects(objects)
    for each in named:
        goal.check(each.kind.name)
    timeout_s = parse_timeout(timeout)
    cli = cli_context(context)
    until_s = cli.monotonic_s() + timeout_s
    with Api(cli) as api:
        # A list: all of them are waited for before one that failed makes the command fail.
        are_met = [
            _wait_for(cli, api, each, goal=goal, until_s=until_s) for each in named
        ]
    if not all(are_met):
        raise typer.Exit(1)


def parse_goal(typed: str) -> Goal:
    """What `--for` takes. Raises BadParameter."""
    word, _, rest = typed.partition("=")
    if typed == "delete":
        return DeleteGoal()
    if word == "condition" and rest:
        name, _, status = rest.partition("=")
        return ConditionGoal(type=name, status=status or "True")
    if word == "state" and rest:
        return StateGoal(state=rest)
    if word == "jsonpath" and rest:
        # The value comes after the last brace: templates have equals signs of their own.
        template, brace, value = rest.rpartition("}")
        if brace and value[:1] in ("", "="):
            return JsonPathGoal(
                path=parse_jsonpath(template + brace), value=value[1:] or None
            )
    raise typer.BadParameter(
        f"{typed!r} is not something to wait for; use --for {EXAMPLES}"
    )


def _wait_for(
    cli: CliContext, api: Api, named: NamedObject, *, goal: Goal, until_s: float
) -> bool:
    """Whether it became so; else an error was shown."""
    last: list[Document | None] = []

    def look() -> bool:
        item = _find(api, named, may_be_gone=isinstance(goal, DeleteGoal))
        last[:] = [item]
        return goal.is_met(item)

    try:
        is_met = poll(cli, look, until_s=until_s)
    except CliError as error:
        show_error(CliError(f"{named}: {error}", hint=error.hint))
        return False
    if not is_met:
        state = f": {goal.describe(last[0])}" if last else ""
        show_error(CliError(f"timed out waiting for {named}{state}"))
        return False
    show_line(f"{named} condition met")
    return True


def _find(api: Api, named: NamedObject, *, may_be_gone: bool) -> Document | None:
    try:
        return fetch_one(api, named.kind, named.name)
    except ApiProblem as problem:
        if may_be_gone and problem.status == codes.NOT_FOUND:
            return None
        raise


def poll(cli: CliContext, look: Callable[[], bool], *, until_s: float) -> bool:
    """Look every second, at least once, until it is so; False when the time is over. Raises CliError.

    A control plane that answered once may be away for a while: it restarts in seconds.
    """
    has_answered = False
    while True:
        try:
            if look():
                return True
            has_answered = True
        except CliError as error:
            if not (has_answered and error.may_pass):
                raise
        if cli.monotonic_s() >= until_s:
            return False
        cli.sleep(POLL_S)


def behind(item: Document | None) -> str:
    """Which older manifest the plan in force was made for, and with it the conditions; empty: the newest one."""
    newest = number(item, "metadata.generation") or 0
    observed = number(item, "status.observed_generation")
    if observed is None or observed >= newest:
        return ""
    return f"the plan in force was made for generation {observed:g} of the manifest, not yet for {newest:g}"


def find_condition(item: Document | None, kind: str) -> Document:
    """The condition of that type, whatever its case; empty where the object has none."""
    for entry in documents(item, "status.conditions"):
        if text(entry, "type").lower() == kind.lower():
            return entry
    return {}
