"""How an explanation is shown, the API's or one made from files: lines and tables of at most 100 columns."""

from collections.abc import Collection, Sequence

from agents.base.plurals import counted
from app.cli.common.client import Document, documents, number, text
from app.cli.common.output import (
    Cells,
    amount,
    bad,
    bold,
    faint,
    plain,
    show_line,
    show_table,
    usd,
)
from app.cli.decisions.explain_gpus import RULES, priced, show_gpu_types, show_gpus
from app.cli.objects.diff import gpus_text, show_changes

BASES = {
    "price": "price of the limit; at most",
    "first_order": "extra load that these replicas could carry",
    "relaxation": "solved again with fractions of GPUs",
}
_MIN_USD, _MIN_WEIGHT = 5e-6, 5e-4
"""What the decimals of a price show."""
_MAX_SHORTFALLS = 2
MAX_LINES = 4
"""At most this many limits that hold back one service are shown."""


def show_explanation(
    answer: Document, services: Sequence[Document], *, is_entire: bool
) -> None:
    """Print an explanation, or what it says of these services."""
    unit = text(answer, "price_unit")
    for message in _texts(answer.get("messages")):
        show_line("  ", message)
    _show_violations(documents(answer, "violations"))
    for service in services:
        _show_service(service, unit)
    gpus = documents(answer, "gpus")
    reliefs = documents(answer, "reliefs")
    if not is_entire:
        names = {text(service, "service") for service in services}
        _show_of_services(gpus, reliefs, names, unit)
        return
    show_gpu_types(documents(answer, "gpu_types"), unit)
    show_gpus(gpus, unit, int(number(answer, "kinds_left_out") or 0))
    _show_reliefs(reliefs, unit)
    _show_losses(answer.get("losses"))
    _show_steps(documents(answer, "steps"))
    _show_changes(answer)


def _show_of_services(
    gpus: Sequence[Document],
    reliefs: Sequence[Document],
    names: Collection[str],
    unit: str,
) -> None:
    """The GPUs on which these services run, with what is next to them, and the reliefs of their own limits."""
    theirs = [
        gpu
        for gpu in gpus
        if any(text(each, "service") in names for each in documents(gpu, "replicas"))
    ]
    # Kinds that were left out may hold none of these services: their number would say nothing.
    show_gpus(theirs, unit, 0)
    _show_reliefs(
        [relief for relief in reliefs if text(relief, "subject") in names], unit
    )


def _show_service(service: Document, unit: str) -> None:
    show_line(bold(f"\n{text(service, 'service')}"), f"  {_rates(service)}")
    _show_price(service, unit)
    show_line("  limit: ", text(service, "limit"))
    for entry in _bindings(service, unit):
        rule = text(entry, "rule")
        replicas = counted(int(number(entry, "replicas") or 0), "replica")
        show_line(
            f"  held back by {RULES.get(rule, rule)}: {text(entry, 'detail')} ({replicas})"
        )
    for entry in documents(service, "unserved"):
        rate = amount(number(entry, "rate_rps"))
        show_line(bad(f"  unserved: {rate} rps ({text(entry, 'reason')})"))
    rows = [_group(entry) for entry in documents(service, "replicas")]
    if rows:
        figures = (">sm %", ">batch", ">rps each", ">can take", ">exec ms")
        show_table(["  replicas", *figures, "next to"], rows)


def _rates(service: Document) -> str:
    titles = ("demand", "planned", "capacity")
    figures = ", ".join(
        f"{title} {amount(number(service, f'{title}_rps'))} rps" for title in titles
    )
    capacity = number(service, "capacity_rps")
    if capacity is None:
        return figures
    slack = capacity - (number(service, "planned_rps") or 0.0)
    # Sums of floats: a full replica may seem to carry a little more than it can.
    return f"{figures} (slack {amount(max(0.0, slack))})"


def _bindings(service: Document, unit: str) -> list[Document]:
    """Those that hold back most replicas; none where to carry more would be worth nothing."""
    worth = number(service, "worth_per_rps")
    # Capacity that would not be used is held back by nothing.
    if worth is not None and worth < (
        _MIN_USD if unit == "usd_per_hour" else _MIN_WEIGHT
    ):
        return []
    found = sorted(
        documents(service, "bindings"),
        key=lambda entry: -(number(entry, "replicas") or 0.0),
    )
    return found[:MAX_LINES]


def _show_price(service: Document, unit: str) -> None:
    worth = number(service, "worth_per_rps")
    if worth is None:
        return
    more = number(service, "price_per_rps") or 0.0
    if unit == "usd_per_hour":
        is_worth = f"{usd(worth, 5)}/h" if worth >= _MIN_USD else "nothing"
        costs = (
            f"one more costs {usd(more, 5)}/h"
            if more >= _MIN_USD
            else "one more costs nothing: there is room"
        )
    else:
        is_worth = f"{amount(worth, 3)} weighted rps"
        takes = amount(more, 3) if more >= _MIN_WEIGHT else "nothing"
        costs = f"one more takes {takes} from others"
    show_line(f"  price: a request per second is worth {is_worth}; {costs}")
    # The sign says which limit binds: the replicas that must run, or those that may.
    replica = number(service, "price_per_replica") or 0.0
    if replica > 0.0:
        show_line(
            f"  price: lowering the minimum by one replica saves at most {priced(replica, unit)}"
        )
    if replica < 0.0:
        show_line(
            f"  price: raising the maximum by one replica saves at most {priced(-replica, unit)}"
        )


def _group(entry: Document) -> Cells:
    return (
        f"  {plain(entry.get('count'))} × {gpus_text(entry)}",
        plain(entry.get("sm_percent")),
        plain(entry.get("batch")),
        amount(number(entry, "arrival_rate_rps")),
        amount(number(entry, "capacity_rps")),
        amount(number(entry, "execution_ms"), 2),
        plain(entry.get("neighbours")),
    )


def _show_reliefs(reliefs: Sequence[Document], unit: str) -> None:
    if not reliefs:
        return
    show_line(bold("\nWhat would help"))
    verb = "saves" if unit == "usd_per_hour" else "serves"
    rows = [
        (
            text(each, "words"),
            priced(number(each, "saving"), unit, 3),
            BASES.get(text(each, "basis"), ""),
        )
        for each in reliefs
    ]
    show_table(["if", f">{verb}", "estimated from"], rows)


def _show_losses(losses: object) -> None:
    # Unknown, or a plan without any GPU: nothing can be lost.
    if not number(losses, "gpus"):
        return
    show_line(bold("\nEffect of a loss"))
    for many, noun in (("gpus", "GPU"), ("nodes", "node")):
        harmful = int(number(losses, f"harmful_{many}") or 0)
        used = int(number(losses, many) or 0)
        # A plan from files names no nodes.
        if used:
            outcome = (
                f"{harmful} of them would be missed"
                if harmful
                else "losing any one does no harm"
            )
            show_line(f"{counted(used, noun)} in use: {outcome}")
    worst = documents(losses, "worst")
    if worst:
        rows = [
            (text(each, "words"), _shortfalls(documents(each, "shortfalls")))
            for each in worst
        ]
        show_table(["lost", "leaves unserved"], rows)


def _shortfalls(shortfalls: Sequence[Document]) -> str:
    shown = []
    # The API puts the largest shortfall first; more than two would not fit the line.
    for each in shortfalls[:_MAX_SHORTFALLS]:
        share = 100.0 * (number(each, "share") or 0.0)
        shown.append(
            f"{text(each, 'service')} {amount(number(each, 'rate_rps'))} rps ({share:.0f} %)"
        )
    more = len(shortfalls) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _show_steps(steps: Sequence[Document]) -> None:
    if not steps:
        return
    show_line(bold("\nHow it was found"))
    rows = [
        (
            text(step, "technique"),
            text(step, "method"),
            text(step, "status"),
            amount(1000 * seconds) if (seconds := number(step, "seconds")) else "-",
            "; ".join(_texts(step.get("messages"))) or "-",
        )
        for step in steps
    ]
    headings = ["technique", "method", "status", ">ms", "messages"]
    show_table(headings, rows)


def _show_changes(answer: Document) -> None:
    # Neither: the plan is the first one, against which there is nothing before.
    if answer.get("moves") is None and not answer.get("changes"):
        return
    show_line(bold("\nCompared with the previous plan"))
    started = int(number(answer, "moves.replicas_started") or 0)
    stopped = int(number(answer, "moves.replicas_stopped") or 0)
    cost = number(answer, "moves.migration_cost_usd_per_hour") or 0.0
    if started or stopped:
        price = f"; the moves count as {usd(cost)}/h" if cost else ""
        show_line(f"{counted(started, 'replica')} to start, {stopped} to stop{price}")
    show_changes(documents(answer, "changes"))


def _show_violations(violations: Sequence[Document]) -> None:
    for entry in violations:
        show_line(
            bad(f"  breaks {text(entry, 'rule')} at {text(entry, 'where')}: "),
            faint(text(entry, "detail")),
        )


def _texts(value: object) -> list[str]:
    return [str(entry) for entry in value] if isinstance(value, list) else []
