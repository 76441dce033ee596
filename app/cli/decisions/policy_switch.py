"""`plimsoll policy switch`: change who decides, after a look at what that would change; and back again."""

from typing import Annotated

import typer

from agents.base.plurals import counted
from app.cli.common.client import Api, Document, dig, documents, number, text
from app.cli.common.context import cli_context
from app.cli.common.errors import CliError
from app.cli.common.options import DryRun, Yes
from app.cli.common.output import bold, good, require_yes, show_line, usd, warn
from app.cli.decisions.approve import POLICY
from app.cli.objects.changes import show_unserved
from app.cli.objects.diff import show_changes
from solvers.policies.cards import card
from solvers.policies.registry import policies

PATH = f"/api/v1/policies/{POLICY}"

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="The new policy",
        autocompletion=lambda: [*policies()],
    ),
]


def switch(
    context: typer.Context,
    name: Name = None,
    *,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            help="Only for this group of services [default: the cluster's]",
        ),
    ] = None,
    back: Annotated[
        bool,
        typer.Option("--back", help="Go back to the policy before the last switch"),
    ] = False,
    approve: Annotated[
        bool | None,
        typer.Option(
            "--approve/--no-approve",
            show_default=False,
            help="Whether a new policy's first plan waits for `plimsoll approve`, now and after later switches "
            "[default: as before]",
        ),
    ] = None,
    dry_run: DryRun = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Switch even if the first plan would be refused"),
    ] = False,
    yes: Yes = False,
) -> None:
    """Change the policy of the running cluster, or of one group of its services.

    Shows first what the new policy would decide now, from what runs: cost, moves, and what would stay unserved; then
    asks. Nodes serve on meanwhile. All other settings stay as they are; `switch --back` undoes it, and leaves what was
    changed since then.
    """
    # Exactly one of the two.
    if back == (name is not None):
        raise typer.BadParameter("give the NAME of a policy, or --back")
    if back and group is not None:
        raise typer.BadParameter("--back takes all groups back; leave --group out")
    with Api(cli_context(context)) as api:
        present, etag = _in_force(api)
        wanted = (
            _before(api, present)
            if name is None
            else _with_policy(present, name, group)
        )
        if _deciders(wanted) == _deciders(present):
            show_line(
                f"{_named(wanted, group)} is already in force; nothing was changed."
            )
            return
        if approve is not None:
            wanted = {**wanted, "approve_switch": approve}
        _show_switch(present, wanted)
        refused = _show_preview(api, wanted)
        if dry_run:
            return
        if refused and not force:
            hint = "`plimsoll policy compare` shows which could; --force switches anyway, and what runs stays"
            raise CliError(f"its first plan would not be pushed: {refused}", hint=hint)
        if not yes:
            require_yes("Switch?", refusal="nothing was changed")
        _put(api, wanted, etag)


def _put(api: Api, wanted: Document, etag: str | None) -> None:
    manifest: Document = {
        "kind": "Policy",
        "metadata": {"name": POLICY},
        "spec": wanted,
    }
    # With the ETag that the preview was made for: what somebody else changed meanwhile is refused, not overwritten.
    answer = api.put(PATH, manifest, etag=etag)
    _show_result(answer, approve=_asks_approval(wanted))


def _in_force(api: Api) -> tuple[Document, str | None]:
    """The settings in force with their ETag."""
    found = api.find(PATH)
    # A spec that is no object is as good as none: nothing could be put back.
    spec = None if found is None else found[0].get("spec")
    if found is None or not isinstance(spec, dict):
        raise CliError(
            "the control plane has no policy", hint="`plimsoll doctor` finds the reason"
        )
    return spec, found[1]


def _with_policy(present: Document, name: str, group: str | None) -> Document:
    """The settings with another policy, for all services that are of no group or for those of one. Raises CliError."""
    card(name)
    if group is None:
        return {**present, "policy": name}
    groups = documents(present, "groups")
    known = [text(each, "name") for each in groups]
    if group not in known:
        there = f"there are {', '.join(known)}" if known else "there is none"
        hint = "groups are defined in the Policy's spec: `plimsoll get policies default -o yaml`, then `plimsoll apply`"
        raise CliError(f"no group is called {group!r}; {there}", hint=hint)
    changed = [
        {**each, "policy": name} if text(each, "name") == group else each
        for each in groups
    ]
    return {**present, "groups": changed}


def _before(api: Api, present: Document) -> Document:
    """The settings in force, but for who decides: as in the newest version where others did. Raises CliError."""
    # Newest first. Versions that changed other settings alone are passed over: going back to them would
    # not change the policy.
    for version in api.items(f"{PATH}/versions"):
        spec = version.get("spec")
        if not isinstance(spec, dict):
            continue
        wanted = _decided_as_in(present, spec)
        if _deciders(wanted) != _deciders(present):
            return wanted
    raise CliError(
        "no other policy was in force before",
        hint="`plimsoll policy switch NAME` changes to one",
    )


def _decided_as_in(present: Document, spec: Document) -> Document:
    """The settings in force with the other ones' policies, of the groups that are in both.

    Which groups there are, and what they are, stays: that is no part of a switch.
    """
    then = _by_group(spec)
    groups = [
        {**each, "policy": then.get(text(each, "name"), text(each, "policy"))}
        for each in documents(present, "groups")
    ]
    return {**present, "policy": text(spec, "policy"), "groups": groups}


def _deciders(spec: Document) -> tuple[str, dict[str, str]]:
    """Who decides on services of no group, and on those of each."""
    return text(spec, "policy"), _by_group(spec)


def _asks_approval(spec: Document) -> bool:
    return spec.get("approve_switch") is True


def _by_group(spec: Document) -> dict[str, str]:
    return {
        text(each, "name"): text(each, "policy") for each in documents(spec, "groups")
    }


def _named(spec: Document, group: str | None) -> str:
    return (
        text(spec, "policy") if group is None else f"{group}: {_by_group(spec)[group]}"
    )


def _show_switch(present: Document, wanted: Document) -> None:
    """One line per policy that changes, with a warning where the new one may break promises, and one for approval."""
    lines = {"policy": (text(present, "policy"), text(wanted, "policy"))}
    old = _by_group(present)
    new = _by_group(wanted)
    # The groups of the new settings: a switch neither makes nor ends any.
    lines |= {f"group {name}": (old[name], new[name]) for name in new}
    lines["approve_switch"] = (
        "yes" if _asks_approval(present) else "no",
        "yes" if _asks_approval(wanted) else "no",
    )
    for what, (before, after) in lines.items():
        if before != after:
            show_line(f"{what}: {before} → ", bold(after))
            # `yes` of approve_switch is no policy.
            if after in policies() and not card(after).promises:
                show_line(
                    warn(
                        f"  {after} may miss an SLO's percentile; such plans are refused, and what runs stays"
                    )
                )


def _show_preview(api: Api, wanted: Document) -> str:
    """Print what would be decided now; returns why that would not be pushed, empty where it would."""
    body: Document = {
        "policy": wanted.get("policy"),
        "groups": wanted.get("groups") or [],
        # As the next tick does: a switch moves what runs, and the moves are what people want to see.
        "from_running": True,
    }
    answer = api.post("/api/v1/plans/preview", body)
    before = usd(number(answer, "cost_before_usd_per_hour"))
    after = usd(number(answer, "cost_usd_per_hour"))
    show_line(f"Cost at the present rates: {before} → {after} per hour")
    _show_moves(documents(answer, "changes"))
    messages = dig(answer, "document.report.messages")
    for message in messages if isinstance(messages, list) else ():
        show_line(f"  {message}")
    show_unserved(answer)
    # Without a solution the loop would go on with the plan in force, so that the switch would have no effect.
    is_refused = text(answer, "state") == "refused" or not text(answer, "solution")
    return text(answer, "reason") if is_refused else ""


def _show_moves(changes: list[Document]) -> None:
    more = [
        int((number(each, "after") or 0) - (number(each, "before") or 0))
        for each in changes
    ]
    starts = sum(each for each in more if each > 0)
    ends = -sum(each for each in more if each < 0)
    if changes:
        show_line(f"{counted(starts, 'replica')} would start, {ends} would end:")
    show_changes(changes)


def _show_result(answer: Document, *, approve: bool) -> None:
    version = text(answer, "status.version")
    show_line(
        good(f"Version {version} of the policy is in force" if version else "Switched")
    )
    mode = text(answer, "spec.mode")
    # Approval comes first: with it the first plan waits in any mode.
    if approve or mode == "approve":
        show_line(
            "Its first plan waits for your approval: `plimsoll get plans`, then `plimsoll approve PLAN`."
        )
    elif mode in ("advise", "off"):
        show_line(f"The policy is in mode {mode}: nothing is pushed.")
    show_line("`plimsoll policy switch --back` undoes it.")
