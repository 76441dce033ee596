"""How long a command holds without a word from the control plane, and what the node does then.

    lease = Lease(state_dir, uptime=machine_uptime(), now_s=clock.now_s())
    lease.renew(reply.lease, now_s)       # every answer of the control plane; None = the command holds for ever
    lease.in_force(command, now_s)        # the command, or what is left of it when the lease has ended
    lease.tick(now_s)                     # notes the end, and keeps on disk how much is left
    lease.problem

Without a lease the command holds for ever. When one ends:

    keep       the command stays in force as it is, and the node says so
    restore    clocks and power limits go back to their defaults and no governor acts; replicas serve on as before

The control plane's next answer ends either. `now_s` is the agent's clock, which no step of the machine's clock moves.
`lease.json` lets a restarted agent count on: by the machine's uptime while it is the same start of the machine, else
from what was left, since it is unknown how long it was off. It is written at most every tenth of the lease, and grants
that tenth on top, so that a restart never ends a lease early.
"""

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from agents.base.durable_files import (
    checked_body,
    checked_line,
    read_boot_id,
    replace_file,
)
from agents.base.protocol import LeaseTerms, NodeCommand, Wire

FILE = "lease.json"
SAVES_PER_LEASE = 10.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uptime:
    """A clock that every process of the machine reads alike, and that is never set."""

    boot_id: str
    """The start of the machine from which it counts; empty = not known, then no time passes between two agents."""
    now_s: Callable[[], float]


def machine_uptime() -> Uptime:
    """This machine's, with the time that it was suspended."""
    boot_id = ""
    with contextlib.suppress(OSError):
        boot_id = read_boot_id()
    return Uptime(
        boot_id=boot_id, now_s=lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
    )


class _Kept(Wire, frozen=True, kw_only=True):
    """What `lease.json` says."""

    terms: LeaseTerms
    left_s: float
    boot_id: str
    uptime_s: float


class Lease:
    """The lease of one node's command. Times are seconds of the agent's clock."""

    def __init__(self, directory: Path | None, *, uptime: Uptime, now_s: float) -> None:
        """Go on with what an earlier start left in `directory`; None keeps nothing."""
        self._path = None if directory is None else directory / FILE
        self._uptime = uptime
        self._terms: LeaseTerms | None = None
        self._renewed_s = self._saved_s = now_s
        self._disk_end_s = now_s
        """When the lease ends by what is on disk."""
        self._ended = False
        """Whether the end was noted."""
        self._disk_problem = self._past = ""
        self._restored: tuple[NodeCommand, NodeCommand] | None = None
        """A command and what is left of it, made once."""
        if self._path is not None:
            self._load(self._path, now_s)

    @property
    def problem(self) -> str:
        """What an operator should know; empty = nothing."""
        return "; ".join(each for each in (self._past, self._disk_problem) if each)

    def has_ended(self, now_s: float) -> bool:
        """Whether the control plane was silent for longer than the command holds."""
        return (
            self._terms is not None
            and now_s >= self._renewed_s + self._terms.duration_s
        )

    def in_force(self, command: NodeCommand, now_s: float) -> NodeCommand:
        """The command; without its clocks, power caps and governors when the lease has ended and says `restore`."""
        if (
            self._terms is None
            or self._terms.on_end == "keep"
            or not self.has_ended(now_s)
        ):
            return command
        # Made once per command, since it is asked for at every look.
        if self._restored is None or self._restored[0] is not command:
            self._restored = (command, without_knobs(command))
        return self._restored[1]

    def renew(self, terms: LeaseTerms | None, now_s: float) -> None:
        """The control plane has answered with these terms."""
        self.tick(now_s)
        if self._ended:
            silent_s = now_s - self._renewed_s
            self._past = f"the control plane was silent for {silent_s:.0f} s and is back: the command is in force again"
            log.warning("%s", self._past)
        self._ended = False
        is_new, self._terms, self._renewed_s = terms != self._terms, terms, now_s
        if is_new or (
            terms is not None and now_s + terms.duration_s > self._disk_end_s
        ):
            self._save(now_s)

    def tick(self, now_s: float) -> None:
        """Note the end when it comes; keep on disk what is left while the control plane is silent."""
        if self._terms is None:
            return
        if self.has_ended(now_s) and not self._ended:
            self._ended, self._past = True, _said(self._terms)
            log.error("%s", self._past)
        # While answers come, `renew` writes, and only when the lease on disk would end too early: writes are synced.
        is_silent = now_s > self._renewed_s + self._save_period_s
        if is_silent and now_s >= self._saved_s + self._save_period_s:
            self._save(now_s)

    def reported(self) -> None:
        """The problem was put into an observation: what is over need not be said again."""
        if not self._ended:
            self._past = ""

    @property
    def _save_period_s(self) -> float:
        return self._terms.duration_s / SAVES_PER_LEASE if self._terms else 0.0

    def _save(self, now_s: float) -> None:
        self._saved_s = now_s
        if self._path is None:
            return
        try:
            if self._terms is None:
                self._path.unlink(missing_ok=True)
            else:
                replace_file(
                    self._path,
                    checked_line(msgspec.json.encode(self._kept(self._terms, now_s))),
                )
        except OSError as error:
            self._disk_problem = f"the lease cannot be saved to disk, so a restart begins it again: {error}"
        else:
            self._disk_problem = ""

    def _kept(self, terms: LeaseTerms, now_s: float) -> _Kept:
        left_s = max(0.0, self._renewed_s + terms.duration_s - now_s)
        # Renewals until the next writing are not on disk: they may be as much later.
        grace_s = self._save_period_s if now_s == self._renewed_s else 0.0
        self._disk_end_s = now_s + left_s + grace_s
        return _Kept(
            terms=terms,
            left_s=left_s + grace_s,
            boot_id=self._uptime.boot_id,
            uptime_s=self._uptime.now_s(),
        )

    def _load(self, path: Path, now_s: float) -> None:
        try:
            kept = msgspec.json.decode(
                checked_body(path.read_bytes().rstrip(b"\n")), type=_Kept
            )
        except FileNotFoundError:
            return
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            self._disk_problem = f"{path} is damaged and was ignored: the command holds until the control plane answers"
            log.error("%s: %s", self._disk_problem, error)
            return
        is_same_boot = kept.boot_id != "" and kept.boot_id == self._uptime.boot_id
        # After a restart of the machine the time that passed is not known; then none counts.
        passed_s = (
            max(0.0, self._uptime.now_s() - kept.uptime_s) if is_same_boot else 0.0
        )
        self._terms = kept.terms
        self._disk_end_s = now_s + kept.left_s - passed_s
        self._renewed_s = self._disk_end_s - kept.terms.duration_s


def without_knobs(command: NodeCommand) -> NodeCommand:
    """The same replicas, tasks and routes, with every clock and power limit at its default and no governor."""
    gpus = (
        msgspec.structs.replace(gpu, clock_mhz=0.0, power_cap_w=0.0, governor=None)
        for gpu in command.gpus
    )
    return msgspec.structs.replace(command, gpus=tuple(gpus))


def _said(terms: LeaseTerms) -> str:
    does = {
        "keep": "its last command stays in force",
        "restore": "clocks and power limits are at their defaults, governors off, until it answers; replicas serve on",
    }
    return f"the control plane was silent for the lease of {terms.duration_s:g} s: {does[terms.on_end]}"
