"""The plan that manifests would lead to, at the rates that are expected, with its price and two alternatives."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.cli.common.client import Api, Document, dig, documents, number, text
from app.cli.common.errors import ApiProblem, CliError, ControlPlaneUnreachable
from app.cli.common.output import (
    Cells,
    amount,
    bad,
    bold,
    faint,
    show_line,
    show_table,
    usd,
)
from app.cli.common.scenario_flags import parse_rate
from app.cli.objects.changes import Action, ApplyStep, body_of, show_unserved

RATE_ANNOTATION = "expected-rps"
"""Where a manifest states the rate that it expects."""
ALTERNATIVES = 2
PLANNING_S = 4.0
ANSWER_S = 20.0
"""The solver's process may have to start first; a price is not worth a longer wait."""
_CENT = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedRate:
    """The rate that a service is priced at."""

    service: str
    rate_rps: float | None
    """None: the control plane's forecast, which for a new service is 0."""
    source: str


def expected_rates(
    steps: Sequence[ApplyStep], given: Mapping[str, float], *, may_ask: bool
) -> tuple[PricedRate, ...]:
    """The rates of all services that change: of the flag, the manifest, or what is measured, else asked for.

    Raises CliError for a manifest whose rate cannot be read.
    """
    return tuple(
        _expected(step, given.get(step.entry.name), may_ask=may_ask)
        for step in steps
        if step.entry.kind == "Service" and step.action is not Action.KEEP
    )


def _expected(step: ApplyStep, given: float | None, *, may_ask: bool) -> PricedRate:
    name = step.entry.name
    stated = _stated(step)
    if given is not None:
        return PricedRate(service=name, rate_rps=given, source="--rate")
    if stated is not None:
        return PricedRate(service=name, rate_rps=stated, source="the manifest")
    # The forecast follows what was measured, and knows the hour of the day.
    if step.measured_rps:
        return PricedRate(service=name, rate_rps=None, source="measured")
    asked = _ask(name) if may_ask else None
    if asked is not None:
        return PricedRate(service=name, rate_rps=asked, source="your answer")
    unknown = f"not known; give --rate {name}=RPS"
    return PricedRate(service=name, rate_rps=None, source=unknown)


def _stated(step: ApplyStep) -> float | None:
    written = step.entry.manifest.metadata.annotations.get(RATE_ANNOTATION)
    if written is None:
        return None
    try:
        return parse_rate(written)
    except ValueError as error:
        path = ("metadata", "annotations", RATE_ANNOTATION)
        raise CliError(str(step.entry.complaint(path, str(error)))) from error


def _ask(name: str) -> float | None:
    """What a person at the terminal expects; None: they do not know."""
    sys.stdout.flush()
    while True:
        sys.stderr.write(f"Expected requests per second of {name} (Enter: not known): ")
        sys.stderr.flush()
        answer = sys.stdin.readline().strip()
        if not answer:
            return None
        try:
            return parse_rate(answer)
        except ValueError as error:
            sys.stderr.write(f"{error}\n")


def show_priced_plan(
    api: Api, steps: Sequence[ApplyStep], rates: Sequence[PricedRate]
) -> None:
    """Print what the new and changed services would cost; in one line why not, where that cannot be known."""
    services = [
        body_of(step.entry.manifest)
        for step in steps
        if step.entry.kind == "Service" and step.action is not Action.KEEP
    ]
    if services:
        _show_priced(api, services, rates)


def _show_priced(
    api: Api, services: Sequence[Document], rates: Sequence[PricedRate]
) -> None:
    body = _question(services, rates)
    progress = f"pricing the plan, for at most {ANSWER_S:g} s …"
    show_line(faint(progress), stream=sys.stderr)
    try:
        answer = api.post("/api/v1/plans/preview", body, limit_s=ANSWER_S)
    except (ApiProblem, ControlPlaneUnreachable) as problem:
        # A viewer may compare but not preview: without the price the command still works.
        detail = problem.detail if isinstance(problem, ApiProblem) else str(problem)
        show_line(faint(f"Cost: not known beforehand ({detail})"))
        return
    _show_rates(answer, rates)
    _show_plans(answer)
    show_unserved(answer)


def _question(services: Sequence[Document], rates: Sequence[PricedRate]) -> Document:
    return {
        "services": list(services),
        "demand_rps": {
            rate.service: rate.rate_rps for rate in rates if rate.rate_rps is not None
        },
        "from_running": True,
        "alternatives_of": [rate.service for rate in rates],
        "time_limit_s": PLANNING_S,
    }


def _show_rates(answer: Document, rates: Sequence[PricedRate]) -> None:
    planned = {
        text(demand, "service"): number(demand, "arrival_rate_rps")
        for demand in documents(answer, "demands")
    }
    show_table(
        ["service", ">planned rps", "rate from"],
        [(one.service, amount(planned.get(one.service)), one.source) for one in rates],
    )


def _show_plans(answer: Document) -> None:
    """The plan in force, the one of the manifests, and what costs least of what else could be done."""
    before = number(answer, "cost_before_usd_per_hour")
    today = answer.get("today")
    rows: list[Cells] = [("in force now", usd(before, 2), "-", "", "")]
    rows.append(_row("with these manifests", today, before, is_wanted=True))
    rows += [
        _row(text(one, "question"), one, before)
        for one in documents(answer, "answers")[:ALTERNATIVES]
    ]
    show_table(["plan", ">cost/h", ">more or less", ">unserved", "gpus"], rows)


def _row(
    name: str, answer: object, before: float | None, *, is_wanted: bool = False
) -> Cells:
    cost = number(answer, "cost_usd_per_hour")
    unserved = number(answer, "unserved_percent") or 0.0
    gpus = dig(answer, "gpus")
    counts = gpus.items() if isinstance(gpus, dict) else ()
    return (
        bold(name) if is_wanted else f"or: {name}",
        usd(cost, 2),
        "-" if before is None or cost is None else _difference(cost - before),
        bad(f"{unserved:.1f} %") if unserved else "-",
        ", ".join(f"{count} {gpu_type}" for gpu_type, count in counts if count)
        or "none",
    )


def _difference(difference: float) -> str:
    # Rounding would show +$0.00.
    if abs(difference) < _CENT:
        return "same"
    return f"{'+' if difference > 0 else '−'}{usd(abs(difference), 2)}"
