"""What-if options → scenarios, as the API's JSON states them: `--demand chat=2,photo=1.5` and the like."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
        return any(
            (
                self.demand,
                self.rate,
                self.gpus,
                self.price,
                self.slo,
                self.service,
                self.without,
            )
        )


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
    asked: list[Document] = [
        {"demand_factor": parse_pairs(text, "--demand", parse_factor)}
        for text in flags.demand
    ]
    own = {
        name: rate
        for pairs in rates
        for name, rate in pairs.items()
        if name in services
    }
    others = [
        {name: rate for name, rate in pairs.items() if name not in services}
        for pairs in rates
    ]
    asked += [{"demand_rps": pairs} for pairs in others if pairs]
    asked += [{"gpus": parse_pairs(text, "--gpus", _more)} for text in flags.gpus]
    asked += [
        {"price_usd_per_hour": parse_pairs(text, "--price", _positive)}
        for text in flags.price
    ]
    asked += [{"slo_ms": parse_pairs(text, "--slo", _positive)} for text in flags.slo]
    for name, entry in services.items():
        asked.append(
            {
                "services": [entry],
                **({"demand_rps": {name: own[name]}} if name in own else {}),
            }
        )
    asked += [{"without": names.split(",")} for names in flags.without]
    return [_together(asked)] if is_together and asked else asked


def flag_error(field: str, problem: str) -> CliError:
    """A complaint about a field of a scenario, in terms of the option that filled it."""
    part = field.rpartition("].")[2] if field.startswith("scenarios[") else field
    name = part.partition("[")[0].partition(".")[0]
    return CliError(f"{FLAGS.get(name, field)}: {problem}")


def _together(asked: Sequence[Document]) -> Document:
    """One scenario with all differences. Raises BadParameter where two disagree."""
    whole: dict[str, object] = {}
    for one in asked:
        for field, value in one.items():
            before = whole.get(field)
            if isinstance(value, dict) and isinstance(before, dict):
                _refuse_repeats(field, [*before, *value])
                whole[field] = {**before, **value}
            elif isinstance(value, list) and isinstance(before, list):
                whole[field] = [*before, *value]
            else:
                whole[field] = value
    return whole


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


def _number(value: str, least: float, words: str) -> float:
    try:
        figure = float(value)
    except ValueError:
        raise ValueError(f"{value!r} is not a number") from None
    if not math.isfinite(figure) or figure < least:
        raise ValueError(f"{value} must be {words}")
    return figure


def parse_factor(value: str) -> float:
    """`1.5`, `x1.5` or `×1.5`, 0 or more. Raises ValueError."""
    return _number(
        value.removeprefix("x").removeprefix("×"),
        0.0,
        "a factor of 0 or more, such as 1.5",
    )


def parse_rate(value: str) -> float:
    """Requests per second, 0 or more. Raises ValueError."""
    return _number(value, 0.0, "0 or more requests per second")


def _positive(value: str) -> float:
    figure = _number(value, 0.0, "above 0")
    if figure <= 0.0:
        raise ValueError(f"{value} must be above 0")
    return figure


def _more(value: str) -> int:
    if value[:1] not in "+-" or not value[1:].isdigit():
        raise ValueError(f"{value!r} must say how many more or fewer: +2 or -1")
    return int(value)
