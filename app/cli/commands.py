"""The table of commands, whose files are imported when they are called."""

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from typer._click.core import Command

PASSED_ON = {
    "agent": "Takes what `plimsoll-agent --help` says.",
    "gateway": "Takes what `plimsoll gateway --help` says.",
    "worker": "Takes what `plimsoll worker --help` says.",
    "trainer": "Takes what `plimsoll trainer --help` says.",
}
"""Commands that hand all their arguments to another program."""

HELP_FLAGS = {"help_option_names": ["-h", "--help"]}


@dataclass(frozen=True, slots=True)
class Entry:
    """One verb: `target` is `module:attribute` below app.cli, a function or a Typer with verbs of its own."""

    name: str
    target: str
    help: str
    """One line; a test compares it with the command's own."""

    @property
    def module(self) -> str:
        return f"app.cli.{self.target.partition(':')[0]}"


SECTIONS: dict[str, tuple[Entry, ...]] = {
    "Start": (
        Entry(
            "up",
            "start.up:up",
            "Start everything on this machine; --demo shows it at work.",
        ),
        Entry("serve", "start.serve:serve", "Run the API and the control loop."),
        Entry(
            "controller",
            "start.serve:controller",
            "Run the control loop without the API.",
        ),
        Entry("agent", "start.passed_on:agent", "Run the agent of a node."),
        Entry(
            "gateway",
            "start.passed_on:gateway",
            "Serve the requests of all services at one fixed address.",
        ),
        Entry(
            "worker",
            "start.passed_on:worker",
            "Serve one replica by the Open Inference Protocol v2.",
        ),
        Entry(
            "trainer",
            "start.passed_on:trainer",
            "Run one training or offline task, which can give its GPU's memory back.",
        ),
        Entry(
            "relay",
            "start.relay:relay",
            "Tell the control plane what a server that no agent started does.",
        ),
        Entry(
            "plan",
            "start.plan:plan",
            "Solve a Problem file into a Plan file, without any server.",
        ),
    ),
    "Objects": (
        Entry(
            "apply",
            "objects.apply:apply",
            "Create or change objects from YAML or JSON manifests.",
        ),
        Entry(
            "diff",
            "objects.diff:diff",
            "Show what `apply` would change, or how two plans differ.",
        ),
        Entry(
            "get", "objects.get:get", "List objects of one kind, or show one of them."
        ),
        Entry(
            "describe",
            "objects.describe:describe",
            "Show one object with its status and latest events.",
        ),
        Entry(
            "wait",
            "objects.wait:wait",
            "Wait until objects reach a condition or a state, or are gone.",
        ),
        Entry(
            "rollout",
            "objects.rollout:app",
            "Follow the rollout of a service's plan to the nodes.",
        ),
        Entry(
            "logs",
            "objects.logs:logs",
            "Print what a service's replicas, or a task, have written.",
        ),
        Entry(
            "port-forward",
            "objects.port_forward:port_forward",
            "Forward a local port to a service.",
        ),
        Entry("delete", "objects.delete:delete", "Delete objects."),
        Entry(
            "cancel", "objects.delete:cancel", "Cancel tasks; they stay in the list."
        ),
        Entry(
            "cordon",
            "objects.cordon:cordon",
            "Start nothing new on a node; what runs there stays.",
        ),
        Entry("uncordon", "objects.cordon:uncordon", "Use a node again."),
        Entry(
            "drain",
            "objects.cordon:drain",
            "Empty nodes: nothing new starts, services move, and running tasks have until the deadline.",
        ),
        Entry(
            "undrain",
            "objects.cordon:undrain",
            "Stop draining a node and use it again.",
        ),
        Entry(
            "acquit",
            "objects.cordon:acquit",
            "Use GPUs again that a critical error condemned.",
        ),
    ),
    "Decisions": (
        Entry(
            "policy",
            "decisions.policy:app",
            "List, describe, compare and switch policies.",
        ),
        Entry(
            "explain", "decisions.explain:explain", "Explain why a plan is as it is."
        ),
        Entry(
            "what-if",
            "decisions.what_if:what_if",
            "Plan alternatives, and rank them by cost.",
        ),
        Entry(
            "approve",
            "decisions.approve:approve",
            "Let a proposed plan become the target.",
        ),
        Entry("reject", "decisions.approve:reject", "Refuse a proposed plan."),
        Entry(
            "rollback",
            "decisions.approve:rollback",
            "Put an earlier plan back in force on the present fleet.",
        ),
        Entry(
            "pause",
            "decisions.approve:pause",
            "Stop the control loop from changing anything.",
        ),
        Entry("resume", "decisions.approve:resume", "Let the control loop continue."),
    ),
    "Prediction": (
        Entry(
            "fit",
            "prediction.fit:fit",
            "Learn latency, power and memory from measurements.",
        ),
        Entry(
            "predict",
            "prediction.predict:predict",
            "Predict latencies under the conditions of a file, row by row.",
        ),
        Entry(
            "forecast",
            "prediction.forecast:app",
            "Show a service's forecast, back-test a trace, or load one as history.",
        ),
        Entry(
            "samples",
            "prediction.samples:app",
            "Plan, convert, send and fit measurements.",
        ),
        Entry(
            "profile",
            "prediction.profile:app",
            "Measure networks on a GPU of this node.",
        ),
        Entry(
            "size",
            "prediction.size:size",
            "Print what one replica of a language model carries on each GPU type, without any server.",
        ),
        Entry(
            "capacity-law",
            "prediction.capacity_law:capacity_law",
            "Print the highest utilisation at which a percentile of requests is on time.",
        ),
    ),
    "Simulation": (
        Entry(
            "simulate",
            "simulation.simulate:simulate",
            "Simulate a fleet under load, and compare policies.",
        ),
        Entry(
            "bound",
            "simulation.bound:bound",
            "Compare a scenario's policies with plans that know its load beforehand.",
        ),
        Entry(
            "trace",
            "simulation.trace:app",
            "Import, generate, change and describe load for simulations.",
        ),
    ),
    "Reports": (
        Entry(
            "top",
            "reports.top:top",
            "Show live what runs where, whether SLOs are met, and what it costs.",
        ),
        Entry(
            "cost",
            "reports.cost_and_slo:cost",
            "Show what was spent, by service, project or GPU type, or on tasks.",
        ),
        Entry(
            "slo",
            "reports.cost_and_slo:slo",
            "Show how many requests met their SLO, by service.",
        ),
        Entry(
            "events",
            "reports.events:events",
            "Show who changed what, and what the loop did.",
        ),
    ),
    "Operation": (
        Entry(
            "token",
            "operation.token:app",
            "Create, list, rotate and revoke access tokens.",
        ),
        Entry(
            "db",
            "operation.db:app",
            "Bring the database to this program's schema, or check it.",
        ),
        Entry(
            "backup",
            "operation.backup:backup",
            "Write a consistent snapshot of the database to a file, while everything keeps running.",
        ),
        Entry(
            "restore",
            "operation.backup:restore",
            "Load a backup into the database, completely or not at all.",
        ),
        Entry(
            "config",
            "operation.config:app",
            "Show settings and their origin; manage contexts.",
        ),
        Entry(
            "doctor",
            "operation.doctor:doctor",
            "Find out what is missing on this machine.",
        ),
        Entry(
            "version",
            "operation.version:version",
            "Show the versions of this program and of the control plane.",
        ),
    ),
}

ENTRIES = tuple(entry for section in SECTIONS.values() for entry in section)


class Commands(MutableMapping[str, "Command"]):
    """The commands by name; looking one up imports its file. One whose file is missing is not there."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = {
            # Looked for, not imported: the packages of a node lack the control plane's files.
            entry.name: entry
            for entry in entries
            if find_spec(entry.module)
        }
        self._loaded: dict[str, Command] = {}

    def __getitem__(self, name: str) -> "Command":
        # Imported once: typer looks a command up several times in one call.
        if name not in self._loaded:
            self._loaded[name] = load(self._entries[name])
        return self._loaded[name]

    def __setitem__(self, name: str, command: "Command") -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)


def load(entry: Entry) -> "Command":
    """The command behind an entry, imported now."""
    found: typer.Typer | Callable[..., None] = getattr(
        import_module(entry.module), entry.target.partition(":")[2]
    )
    if isinstance(found, typer.Typer):
        group = found
    else:
        group = typer.Typer(
            add_completion=False, rich_markup_mode=None, context_settings=HELP_FLAGS
        )
        group.command(entry.name)(found)
    command = typer.main.get_command(group)
    # typer names a command after its function, `slice_trace`.
    command.name = entry.name
    return command
