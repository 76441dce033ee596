"""The kinds of objects that the API has: their names, their paths, and their tables."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import typer

from app.cli.common import columns, task_columns
from app.cli.common.client import Document, Query
from app.cli.common.output import Cells
from app.store.plan_states import DECISIVE

Row = Callable[[Document], Cells]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandKind:
    """One kind of objects. Tables fit into 80 columns; `wide` columns are put before the last one."""

    name: str
    """As in manifests where users write it."""
    path: str
    """The list's path below /api/v1."""
    aliases: tuple[str, ...] = ()
    headings: tuple[str, ...]
    row: Row
    wide_headings: tuple[str, ...] = ()
    wide_row: Row = lambda _document: ()
    id_field: str = "metadata.name"
    has_one: bool = True
    """Whether one object can be asked for by its name."""
    is_deletable: bool = False
    plural: str = ""
    """Where it is not the name with an s."""
    default_query: Query = field(default_factory=dict)
    """What `get` asks for unless --all is given."""

    def reference(self, name: str) -> str:
        """`service/chat`, `gpu-type/T4`: as commands take it."""
        word = "".join(
            f"-{letter.lower()}" if letter.isupper() else letter for letter in self.name
        )
        return f"{word.lstrip('-')}/{name}"

    def one(self, name: str) -> str:
        """Path of one object."""
        return f"{self.list_path}/{name}"

    @property
    def list_path(self) -> str:
        """Path of the list."""
        return f"/api/v1/{self.path}"

    def table(
        self, items: Sequence[Document], *, wide: bool
    ) -> tuple[tuple[str, ...], list[Cells]]:
        """Headings and rows."""
        if not wide:
            return self.headings, [self.row(item) for item in items]
        # The last column may fold, so that it has to stay the last.
        headings = (*self.headings[:-1], *self.wide_headings, self.headings[-1])
        return headings, [
            (*self.row(item)[:-1], *self.wide_row(item), self.row(item)[-1])
            for item in items
        ]


def find_kind(word: str) -> CommandKind:
    """The kind that a user means: `service`, `Services`, `svc`, `gpu_type`. Raises BadParameter."""
    wanted = word.lower().replace("-", "").replace("_", "")
    for kind in KINDS:
        # Manifests say GpuType, paths gpu-types, people gpu_type: all of them mean one kind.
        if wanted in {
            name.lower().replace("-", "")
            for name in (kind.name, kind.path, *kind.aliases)
        }:
            return kind
    from difflib import get_close_matches

    names = [kind.path for kind in KINDS]
    close = get_close_matches(word.lower(), names, n=1)
    guess = f"did you mean {close[0]}? The" if close else "the"
    raise typer.BadParameter(
        f"unknown kind {word!r}; {guess} kinds are {', '.join(names)}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedObject:
    """One object that a command line names."""

    kind: CommandKind
    name: str

    def __str__(self) -> str:
        return self.kind.reference(self.name)


def parse_objects(typed: Sequence[str]) -> list[NamedObject]:
    """The objects of `service/chat task/nightly` or of `service chat photo`. Raises BadParameter."""
    # The names of profiles have a slash, too, so that the first word decides.
    if "/" not in typed[0]:
        kind = find_kind(typed[0])
        if len(typed) == 1:
            raise typer.BadParameter(
                f"{typed[0]!r} names no object; write {kind.reference('NAME')}"
            )
        return [NamedObject(kind=kind, name=name) for name in typed[1:]]
    found = []
    for each in typed:
        before, slash, name = each.partition("/")
        if not slash or not name:
            raise typer.BadParameter(f"{each!r} is not KIND/NAME, such as service/chat")
        found.append(NamedObject(kind=find_kind(before), name=name))
    return found


def kind_names() -> list[str]:
    """For shell completion."""
    return [kind.path for kind in KINDS]


KINDS = (
    CommandKind(
        name="Service",
        path="services",
        aliases=("svc",),
        headings=("name", "network", "slo", ">rps", ">slo met", ">replicas", "ready"),
        row=columns.service_row,
        wide_headings=(
            "project",
            ">priority",
            "mode",
            ">planned rps",
            ">latency ms",
            "replicas by type",
            "endpoint",
        ),
        wide_row=columns.service_wide_cells,
        is_deletable=True,
    ),
    CommandKind(
        name="Task",
        path="tasks",
        headings=("name", "network", "state", ">done", ">sm %", "gpu", "ends"),
        row=task_columns.task_row,
        wide_headings=(
            "project",
            "kind",
            ">priority",
            ">per s",
            "deadline",
            ">waited",
            ">starts",
            ">swaps",
        ),
        wide_row=task_columns.task_wide_cells,
        is_deletable=True,
    ),
    CommandKind(
        name="Endpoint",
        path="endpoints",
        headings=("service", ">nodes", ">ready", "endpoint"),
        row=columns.endpoint_row,
        id_field="service",
        has_one=False,
    ),
    CommandKind(
        name="Node",
        path="nodes",
        headings=("name", "state", ">seen", ">generation", "gpus"),
        row=columns.node_row,
        wide_headings=("agent", ">skew s", "problems"),
        wide_row=columns.node_wide_cells,
        is_deletable=True,
    ),
    CommandKind(
        name="Gpu",
        path="gpus",
        headings=("id", "node", "gpu type", "state"),
        row=columns.gpu_row,
        id_field="id",
        has_one=False,
    ),
    CommandKind(
        name="GpuType",
        path="gpu-types",
        headings=("name", ">price/h", ">memory mib", ">idle w", ">cap w", "clocks mhz"),
        row=columns.gpu_type_row,
        wide_headings=(">sm step", "provenance"),
        wide_row=columns.gpu_type_wide_cells,
        is_deletable=True,
    ),
    CommandKind(
        name="Network",
        path="networks",
        headings=("name", ">gpu types", "description"),
        row=columns.network_row,
        wide_headings=("profiled on",),
        wide_row=columns.network_wide_cells,
        is_deletable=True,
    ),
    CommandKind(
        name="Profile",
        path="profiles",
        headings=("network", "gpu type", "version", "provenance"),
        row=columns.profile_row,
        wide_headings=("source",),
        wide_row=columns.profile_wide_cells,
        id_field="id",
    ),
    CommandKind(
        name="Project",
        path="projects",
        headings=("name", "created", "labels"),
        row=columns.project_row,
        is_deletable=True,
    ),
    CommandKind(
        name="Budget",
        path="budgets",
        headings=(
            "name",
            "of",
            ">limit",
            "period",
            ">spent",
            ">used",
            ">at present plan",
            "when spent",
        ),
        row=columns.budget_row,
        is_deletable=True,
    ),
    CommandKind(
        name="Webhook",
        path="webhooks",
        headings=("name", "events", "enabled", ">waiting", "delivered", "last error"),
        row=columns.webhook_row,
        is_deletable=True,
    ),
    CommandKind(
        name="Policy",
        path="policies",
        headings=(
            "name",
            "policy",
            "mode",
            "paused",
            ">period s",
            "objective",
            ">version",
        ),
        row=columns.policy_row,
        wide_headings=("groups",),
        wide_row=columns.policy_wide_cells,
        plural="Policies",
    ),
    CommandKind(
        name="Plan",
        path="plans",
        headings=(
            ">id",
            "at",
            "state",
            "solution",
            ">cost/h",
            ">gap %",
            "reason or method",
        ),
        row=columns.plan_row,
        wide_headings=("policy", ">generation", ">ms"),
        wide_row=columns.plan_wide_cells,
        id_field="id",
        default_query={"state": DECISIVE},
    ),
    CommandKind(
        name="Demand",
        path="demand",
        aliases=("demands",),
        headings=("service", ">rps", "method", "at", ">plan"),
        row=columns.demand_row,
        id_field="service",
        has_one=False,
    ),
    CommandKind(
        name="Token",
        path="tokens",
        headings=("id", "name", "scope", "state", "projects", "node"),
        row=columns.token_row,
        wide_headings=("created", "last used", "expires"),
        wide_row=columns.token_wide_cells,
        id_field="id",
        has_one=False,
    ),
)
