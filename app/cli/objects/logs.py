"""`plimsoll logs`: what replicas and tasks have written, as their nodes keep it."""

import re
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import typer

from app.cli.common.client import Api, Document, Query, documents, number, text
from app.cli.common.context import CliContext, cli_context
from app.cli.common.durations import parse_moment
from app.cli.common.errors import CliError, Patience, show_error
from app.cli.common.kinds import NamedObject, parse_objects
from app.cli.objects.completion import complete_logged

FOLLOW_S = 1.0
"""Between two requests for what is new; nodes answer about once a second."""
MAX_AT_ONCE = 8
"""Logs that are asked for at the same time: as many as the control plane takes of one token."""
MAX_LINE = 65_536
LINE_ENDS = re.compile(r"\r\n|\n|\r(?!\Z)")
"""A carriage return at the end is no end of a line yet, since a newline may follow."""
COLOURS = re.compile(r"\x1b\[[0-9;:]*m")


def logs(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="SERVICE|task/NAME",
            help="One service or task",
            autocompletion=complete_logged,
        ),
    ],
    *,
    replica: Annotated[
        str | None,
        typer.Option("-r", "--replica", help="That one, also after its end"),
    ] = None,
    all_replicas: Annotated[
        bool, typer.Option("--all", help="All replicas, each line after its replica")
    ] = False,
    tail: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help="Maximum number of lines, the last ones"),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="Such as 5m, or 2026-01-31T18:00Z; UTC where it says no zone",
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("-f", "--follow", help="Go on with what comes until interrupted"),
    ] = False,
) -> None:
    """Print what a service's replicas, or a task, have written.

    Of several replicas the one that fails is printed, else the first; of each log the last 64 KiB at most. The log of
    what has ended stays on its node until newer ones take its place. On a terminal, control characters are escaped.

    Examples: plimsoll logs chat --tail 50    plimsoll logs chat --all -f    plimsoll logs task/teach --since 5m
    """
    named = _parse_target(target)
    if named.kind.name == "Task" and (replica or all_replicas):
        raise typer.BadParameter(
            "a task has no replicas; leave out --replica and --all"
        )
    if replica and all_replicas:
        raise typer.BadParameter("give --replica or --all, not both")
    cli = cli_context(context)
    moment = (
        None if since is None else parse_moment(since, datetime.now(UTC)).isoformat()
    )
    query: Query = {"tail": tail, "since": moment}
    with Api(cli) as api:
        reader = LogReader(cli, api, f"{named.kind.one(named.name)}/logs")
        try:
            reader.read(query, replica=replica, takes_all=all_replicas)
            if follow:
                reader.follow()
        # Which is how following ends well.
        except KeyboardInterrupt:
            if not follow:
                raise
        finally:
            reader.finish()


def _parse_target(typed: str) -> NamedObject:
    (named,) = parse_objects([typed if "/" in typed else f"service/{typed}"])
    if named.kind.name not in ("Service", "Task"):
        raise typer.BadParameter("name a service or a task, such as chat or task/teach")
    return named


@dataclass(slots=True, kw_only=True)
class ReadLog:
    """One log, and how far it was read."""

    replica: str | None
    """None: a task's."""
    prefix: str = ""
    end: int | None = None
    """None: nothing was read yet."""
    unfinished: str = ""
    """A line that waits for its end, so that no other replica's stands within it."""
    problem: str = ""

    def take(self, written: str) -> str:
        """What is to be printed now that this was read; a prefix stands before whole lines."""
        if not self.prefix:
            return written
        # A carriage return ends a line as well: no replica may write where the name of another one is expected.
        *lines, self.unfinished = LINE_ENDS.split(self.unfinished + written)
        # A line that never ends must not fill the memory.
        if len(self.unfinished) > MAX_LINE:
            lines.append(self.unfinished)
            self.unfinished = ""
        return "".join(f"{self.prefix}{line}\n" for line in lines)

    def rest(self) -> str:
        """The line that has no end."""
        left, self.unfinished = self.unfinished, ""
        return f"{self.prefix}{left}\n" if left else ""


class LogReader:
    """Prints one log, or those of all replicas of a service."""

    def __init__(self, cli: CliContext, api: Api, path: str) -> None:
        self._cli, self._api, self._path = cli, api, path
        self._logs: dict[str | None, ReadLog] = {}
        self._takes_all = False

    def read(self, query: Query, *, replica: str | None, takes_all: bool) -> None:
        """Print what there is. Raises CliError where nothing can be read."""
        self._takes_all = takes_all
        first = self._api.get(self._path, {"replica": replica, **query})
        listed = documents(first, "replicas")
        if takes_all:
            # Of a service without a replica the last ones say why.
            self._add(_running(first) or listed)
            for log, part in self._ask_all(query):
                self._show(log, part)
            if all(each.problem for each in self._logs.values()):
                raise CliError("no replica's log can be read")
            return
        if problem := text(first, "problem"):
            raise CliError(problem)
        chosen = text(first, "replica") or None
        if replica is None and len(listed) > 1:
            _note(f"{chosen} of {len(listed)} replicas; --all prints all that run")
        self._logs[chosen] = ReadLog(replica=chosen)
        self._show(self._logs[chosen], first)

    def follow(self) -> None:
        """Print what comes, until what is read has ended."""
        # A control plane that answered once may be away for a while: it restarts in seconds.
        patience = Patience(period_s=FOLLOW_S)
        while self._logs:
            # What was not answered is asked again from where it was read.
            for log, part in patience.ask(self._cli.sleep, partial(self._ask_all, {})):
                self._show(log, part)
                # It goes even if its node is away, because every poll would wait for that node.
                if _has_ended(log, part):
                    self._write(log.rest())
                    del self._logs[log.replica]

    def finish(self) -> None:
        """Print the lines that were kept back for their ends."""
        for log in self._logs.values():
            self._write(log.rest())

    def _ask_all(self, query: Query) -> list[tuple[ReadLog, Document]]:
        """Ask for what each log has beyond what was read."""

        def ask(log: ReadLog) -> Document:
            return self._api.get(
                self._path, {"replica": log.replica, "after": log.end, **query}
            )

        read = list(self._logs.values())
        # At once: each waits for its node's next sync.
        with ThreadPoolExecutor(MAX_AT_ONCE) as threads:
            return list(zip(read, threads.map(ask, read), strict=True))

    def _show(self, log: ReadLog, part: Document) -> None:
        if self._takes_all:
            self._add(_running(part))
        problem, before = text(part, "problem"), log.problem
        log.problem = problem
        if problem:
            # Said once, while the node of a log that is followed is away.
            if problem != before:
                show_error(CliError(f"{log.prefix}{problem}"))
            return
        written, start = text(part, "text"), int(number(part, "start") or 0)
        is_first = log.end is None
        skipped = start - (log.end or 0)
        if skipped > 0 and not is_first:
            _note(f"{log.prefix}{skipped:,} bytes came too fast and are left out")
        log.end = int(number(part, "end") or 0)
        self._write(log.take(written))

    def _add(self, replicas: Iterable[Document]) -> None:
        for name in _names(replicas):
            self._logs.setdefault(name, ReadLog(replica=name, prefix=f"[{name}] "))

    def _write(self, written: str) -> None:
        # A program in a pipe gets what was written; a terminal would obey it.
        shown = escaped(written) if self._cli.is_terminal() else written
        sys.stdout.write(shown)
        # Who follows wants to see it now, in a pipe, too.
        sys.stdout.flush()


def escaped(written: str) -> str:
    """The text for a terminal: without colours, and with characters that move, hide or turn text spelt out."""
    # Progress bars write one line again and again; colours do no harm, and spelt out they would make it unreadable.
    lines = COLOURS.sub("", written.replace("\r\n", "\n").replace("\r", "\n"))
    return "".join(
        each
        if each.isprintable() or each in "\n\t"
        else each.encode("unicode_escape").decode()
        for each in lines
    )


def _has_ended(log: ReadLog, part: Document) -> bool:
    """Whether this part, with nothing in it, is the last one: a task may start again, a replica does not."""
    if log.replica is None or text(part, "text"):
        return False
    return log.replica not in _names(_running(part))


def _running(part: Document) -> list[Document]:
    return [
        each
        for each in documents(part, "replicas")
        if each.get("is_planned") or each.get("state") is not None
    ]


def _names(replicas: Iterable[Document]) -> list[str]:
    return [text(each, "replica") for each in replicas]


def _note(what: str) -> None:
    sys.stderr.write(f"Note: {what}\n")
