"""Parameters of policies, which operators may set: typed, documented and bounded where they are defined.

A policy's folder has a `parameters.py` with one dataclass, which its `PolicySpec` names:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class HetsevParameters(PolicyParameters):
        queues: int = parameter(4, "fair queues at most, k of Algorithm 1", at_least=1, at_most=64)
"""

from collections.abc import Iterator, Mapping
from dataclasses import Field, asdict, dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

from solvers.types.errors import InvalidInput

Setting = int | float | str
"""A value of a parameter."""
Stated = TypeVar("Stated", bound="PolicyParameters")


class _Range(NamedTuple):
    """What a parameter is, and what it may be."""

    about: str
    at_least: float | None
    at_most: float | None
    choices: tuple[str, ...]


def parameter(
    default: Setting,
    about: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A field of a policy's parameters. Bounds count as allowed; a text is one of `choices`."""
    return field(
        default=default, metadata={"range": _Range(about, at_least, at_most, choices)}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyParameters:
    """The parameters of a policy; the base has none. Raises InvalidInput for a value out of range."""

    def __post_init__(self) -> None:
        for each in fields(self):
            _check(each, getattr(self, each.name))

    @property
    def changed(self) -> Mapping[str, Setting]:
        """The parameters that are not as they are by default."""
        defaults = asdict(type(self)())
        return {
            name: value
            for name, value in asdict(self).items()
            if value != defaults[name]
        }


AS_BY_DEFAULT = PolicyParameters()
"""Every policy takes it for its own defaults."""


def parameters_as(parameters: PolicyParameters, kind: type[Stated]) -> Stated:
    """The parameters of a policy; its defaults where they are another policy's, or none."""
    return parameters if isinstance(parameters, kind) else kind()


class ParameterFacts(NamedTuple):
    """One parameter, as people are told."""

    name: str
    default: Setting
    allowed: str
    about: str


def facts_of(kind: type[PolicyParameters]) -> tuple[ParameterFacts, ...]:
    """All parameters of a policy, in their order."""
    defaults = asdict(kind())
    return tuple(
        ParameterFacts(
            each.name,
            defaults[each.name],
            _allowed(each),
            each.metadata["range"].about,
        )
        for each in fields(kind)
    )


def read_parameters(kind: type[Stated], stated: Mapping[str, Setting]) -> Stated:
    """The parameters with what an operator stated. Raises InvalidInput, whose field is the parameter's name."""
    known = {each.name: each for each in fields(kind)}
    for name in stated:
        # A typing mistake would otherwise leave the default in force without a word.
        if name not in known:
            names = ", ".join(known) or "none"
            raise InvalidInput(name, f"unknown parameter; this policy has {names}")
    return kind(**{name: _typed(known[name], value) for name, value in stated.items()})


def _typed(of: Field[Any], value: Setting) -> Setting:
    """A whole number for a parameter that may be any number is one."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if is_whole and isinstance(of.default, float) else value


def _check(of: Field[Any], value: object) -> None:
    allowed: _Range = of.metadata["range"]
    # A bool is an int to Python, and NaN passes no comparison.
    is_right = type(value) is type(of.default)
    if isinstance(value, str):
        is_right = is_right and value in allowed.choices
    elif isinstance(value, int | float):
        low, high = allowed.at_least, allowed.at_most
        is_right = (
            is_right
            and (low is None or value >= low)
            and (high is None or value <= high)
            and abs(value) < float("inf")
        )
    if not is_right:
        raise InvalidInput(of.name, f"must be {_allowed(of)}, not {value!r}")


def _allowed(of: Field[Any]) -> str:
    allowed: _Range = of.metadata["range"]
    if allowed.choices:
        return " or ".join(allowed.choices)
    kind = "a whole number" if isinstance(of.default, int) else "a number"
    return " ".join((kind, *_limits(allowed)))


def _limits(allowed: _Range) -> Iterator[str]:
    low, high = allowed.at_least, allowed.at_most
    if low is not None and high is not None:
        yield f"from {low:g} to {high:g}"
    elif low is not None:
        yield f"of at least {low:g}"
    elif high is not None:
        yield f"of at most {high:g}"
