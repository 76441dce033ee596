"""What-if options → scenarios, as the API's JSON states them: `--demand chat=2,photo=1.5` and the like."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import typer

from app.cli.common.client import Document
from app.cli.common.errors import CliError

FLAGS = {
    "demand_factor": "--demand",
    "demand_rps": "--rate",
    "gpus": "--gpus",
    "price_usd_per_hour": "--price",
    "slo_ms": "--slo",
    "services": "--service",
    "without": "--without",
}
"""Options by the field of a scenario that they fill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """The options as they were given; each entry is a question."""

    demand: Sequence[str]
    rate: Sequence[str]
    gpus: Sequence[str]
    price: Sequence[str]
    slo: Sequence[str]
    service: Sequence[Path]
    without: Sequence[str]

    def is_any(self) -> bool:
        """Whether anything is asked."""
        return any(getattr(self, each.name) for each in fields(self))


def read_scenarios(
    flags: Flags,
    *,
    is_together: bool,
    read_service: Callable[[Path], tuple[str, object]],
) -> list[Document]:
    """The scenarios; all of them in one where they are asked together.

    read_service: the name and the entry of a service in a file. A rate of such a service belongs to its question.
    Raises BadParameter, CliError.
    """
    services = dict(read_service(path) for path in flags.service)
    rates = [parse_pairs(text, "--rate", parse_rate) for text in flags.rate]
    # A rate of a service that is not there yet is no question by itself.
    others = (
        {name: rate for name, rate in pairs.items() if name not in services}
        for pairs in rates
    )
    present_rates: list[Document] = [{"demand_rps": pairs} for pairs in others if pairs]
    asked: list[Document] = [
        *_pairs_of("demand_factor", flags.demand, parse_factor),
        *present_rates,
        *_pairs_of("gpus", flags.gpus, _more),
        *_pairs_of("price_usd_per_hour", flags.price, _positive),
        *_pairs_of("slo_ms", flags.slo, _positive),
    ]
    own = {name: rate for pairs in rates for name, rate in pairs.items()}
    for name, entry in services.items():
        rate: Document = {"demand_rps": {name: own[name]}} if name in own else {}
        asked.append({"services": [entry], **rate})
    asked += [{"without": names.split(",")} for names in flags.without]
    return [_together(asked)] if is_together and asked else asked


def _pairs_of(
    field: str, texts: Sequence[str], read: Callable[[str], float | int]
) -> Iterator[Document]:
    """A scenario for each time that an option was given."""
    for text in texts:
        yield {field: parse_pairs(text, FLAGS[field], read)}


def flag_error(field: str, problem: str) -> CliError:
    """A complaint about a field of a scenario, in terms of the option that filled it."""
    # `scenarios[2].gpus` of an answer, `gpus` of a problem that was made here.
    part = field.rpartition("].")[2] if field.startswith("scenarios[") else field
    name = part.partition("[")[0].partition(".")[0]
    return CliError(f"{FLAGS.get(name, field)}: {problem}")


def _together(asked: Sequence[Document]) -> Document:
    """One scenario with all differences. Raises BadParameter where two disagree."""
    together: Document = {}
    for one in asked:
        for field, value in one.items():
            before = together.get(field)
            if isinstance(value, dict) and isinstance(before, dict):
                _refuse_repeats(field, [*before, *value])
                together[field] = {**before, **value}
            elif isinstance(value, list) and isinstance(before, list):
                together[field] = [*before, *value]
            else:
                together[field] = value
    return together


def parse_pairs(
    text: str, flag: str, read: Callable[[str], float | int]
) -> Mapping[str, float | int]:
    """`a=1,b=2` of an option. read: raises ValueError for what is no value. Raises BadParameter."""
    found: dict[str, float | int] = {}
    for name, value in _split(text, flag):
        try:
            figure = read(value)
        except ValueError as error:
            raise typer.BadParameter(
                f"{text!r}: {error}", param_hint=f"'{flag}'"
            ) from error
        if name in found:
            raise typer.BadParameter(
                f"{text!r} names {name} twice", param_hint=f"'{flag}'"
            )
        found[name] = figure
    return found


def _split(text: str, flag: str) -> Iterator[tuple[str, str]]:
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not name.strip() or not equals:
            example = {"--gpus": "A100=+1", "--price": "A100=3.5"}.get(flag, "chat=2")
            raise typer.BadParameter(
                f"{text!r} is not NAME=VALUE, such as {example}", param_hint=f"'{flag}'"
            )
        yield name.strip(), value.strip()


def _refuse_repeats(field: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise typer.BadParameter(
                f"{name} is given twice, which --together cannot mean",
                param_hint=FLAGS[field],
            )


def _number(value: str, rule: str) -> float:
    try:
        figure = float(value)
    except ValueError:
        raise ValueError(f"{value!r} is not a number") from None
    # float() reads nan and inf, too.
    if not math.isfinite(figure) or figure < 0.0:
        raise ValueError(f"{value} must be {rule}")
    return figure


def parse_factor(value: str) -> float:
    """`1.5`, `x1.5` or `×1.5`, 0 or more. Raises ValueError."""
    return _number(
        value.removeprefix("x").removeprefix("×"), "a factor of 0 or more, such as 1.5"
    )


def parse_rate(value: str) -> float:
    """Requests per second, 0 or more. Raises ValueError."""
    return _number(value, "0 or more requests per second")


def _positive(value: str) -> float:
    figure = _number(value, "above 0")
    # 0 passes above, and neither a price nor an SLO can be 0.
    if figure <= 0.0:
        raise ValueError(f"{value} must be above 0")
    return figure


def _more(value: str) -> int:
    # A bare 2 could as well mean two in all.
    if value[:1] not in "+-" or not value[1:].isdigit():
        raise ValueError(f"{value!r} must be a change in number, such as +2 or -1")
    return int(value)
