"""Strict reading of JSON documents: every value is checked once, and every complaint names its field."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from solvers.types.errors import InvalidInput

Made = TypeVar("Made")

MAX_NUMBER = 1e12
"""Nothing that Plimsoll counts is larger; a bigger figure is a unit mistake and would ruin a solver's scaling."""
RESERVED = dict.fromkeys(
    (
        "tasks",
        "jobs",
        "variants",
        "projects",
        "nodes",
        "cluster_power_cap_w",
        "carbon_price",
        "layouts",
        "gpus_per_replica",
        "spread",
        "launch_s",
        "shadow_memory_mib",
        "id",
    ),
    "this name is kept for later versions of the contract; leave it out",
)
"""Refused with words of their own, and not as typing mistakes."""


def parse_json(text: str | bytes) -> object:
    """The parsed JSON text.

    Raises InvalidInput for malformed JSON, for NaN and infinities, and for an object that names a key twice.
    """
    try:
        return json.loads(
            text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates
        )
    except json.JSONDecodeError as error:
        raise InvalidInput(
            "", f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(
            "", f"not UTF-8 text: {error.reason} at byte {error.start}"
        ) from error
    # Python's reader recurses; a few thousand brackets exhaust its stack.
    except RecursionError as error:
        raise InvalidInput(
            "", "not JSON that can be read: nested too deeply"
        ) from error
    except ValueError as error:  # integers of more digits than Python converts
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput("", f"a number is too long to read ({error})") from error


def _refuse_constant(name: str) -> float:
    raise InvalidInput(
        "", f"{name} is not a number that the contract allows; write a finite number"
    )


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    # Python's reader would silently keep the last of two values.
    document = dict(pairs)
    if len(document) < len(pairs):
        # Counted in one go: an object may have as many fields as a body has room for.
        counts = Counter(name for name, _ in pairs)
        repeated = next(name for name, count in counts.items() if count > 1)
        raise InvalidInput(
            _shown(repeated),
            "this field is given twice in one object; keep one of them",
        )
    return document


class Fields:
    """The fields of one JSON object, read one by one; `done()` refuses those that were not read."""

    def __init__(
        self, document: object, path: str, reserved: Mapping[str, str] | None = None
    ) -> None:
        if not isinstance(document, Mapping):
            raise InvalidInput(
                path or "document", f"must be an object, not {describe(document)}"
            )
        self._document = document
        self._path = path
        self._asked: set[str] = set()
        self._reserved = reserved or {}

    def at(self, name: str) -> str:
        """The path of field `name`."""
        return f"{self._path}.{name}" if self._path else name

    def names(self) -> tuple[str, ...]:
        """All fields of an object whose names are free, in their order."""
        return tuple(self._document)

    def has(self, name: str) -> bool:
        """Whether the field is present and not null."""
        # Asked for even where it is absent: `done` lists it among the fields that exist here.
        self._asked.add(name)
        return self._document.get(name) is not None

    def given(self, name: str) -> bool:
        """Whether the field is present, even if null."""
        self._asked.add(name)
        return name in self._document

    def value(self, name: str) -> object:
        """The raw value of a required field (which may be null)."""
        self._asked.add(name)
        if name not in self._document:
            raise InvalidInput(self.at(name), "this field is missing")
        return self._document[name]

    def number(
        self,
        name: str,
        *,
        at_least: float = 0.0,
        above: float | None = None,
        at_most: float = MAX_NUMBER,
    ) -> float:
        """A required finite number in [at_least, at_most], or in (above, at_most] when `above` is given."""
        return read_number(
            self.value(name),
            self.at(name),
            at_least=at_least,
            above=above,
            at_most=at_most,
        )

    def integer(self, name: str, *, at_least: int = 0) -> int:
        """A required whole number."""
        return read_integer(self.value(name), self.at(name), at_least=at_least)

    def text(self, name: str) -> str:
        """A required string of 1 to 253 characters."""
        return read_text(self.value(name), self.at(name))

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        """A required string that is one of `allowed`."""
        chosen = self.value(name)
        if not isinstance(chosen, str) or chosen not in allowed:
            raise InvalidInput(
                self.at(name),
                f"must be one of {', '.join(allowed)}, not {describe(chosen)}",
            )
        return chosen

    def read(self, name: str, make: Callable[[object, str], Made]) -> Made:
        """`make(value, path)` of a required field."""
        return make(self.value(name), self.at(name))

    def items(self, name: str) -> Iterator[tuple[object, str]]:
        """The items of a required array, each with its path."""
        return read_items(self.value(name), self.at(name))

    def each(
        self, name: str, make: Callable[[object, str], Made], *, at_least: int = 0
    ) -> tuple[Made, ...]:
        """`make(item, path)` of every item of a required array."""
        made = tuple(make(item, path) for item, path in self.items(name))
        if len(made) < at_least:
            raise InvalidInput(self.at(name), f"needs at least {at_least} item(s)")
        return made

    def done(self) -> None:
        """Refuse every field that was not asked for."""
        for name in self._document:
            if name in self._asked:
                continue
            # A reserved name is no typing mistake, and its message says more than that it is unknown.
            if name in self._reserved:
                raise InvalidInput(self.at(name), self._reserved[name])
            known = ", ".join(sorted(self._asked))
            raise InvalidInput(
                self.at(_shown(name)), f"unknown field; the fields here are {known}"
            )


def fields_document(value: object) -> dict[str, object]:
    """The fields of a slotted dataclass by name, ready for `json.dumps`."""
    # The contract's names are the dataclasses' own, so that a new field of both needs no line here.
    return {name: getattr(value, name) for name in type(value).__slots__}  # type: ignore[attr-defined]


def _shown(name: str) -> str:
    """A field's name as a message may show it: without what moves a terminal, and not too long."""
    return name if name.isprintable() and len(name) <= 60 else describe(name)


def read_items(value: object, path: str) -> Iterator[tuple[object, str]]:
    """The items of an array, each with its path."""
    # Tuples, too: a document that this program made need not go through JSON text to be read.
    if not isinstance(value, list | tuple):
        raise InvalidInput(path, f"must be an array, not {describe(value)}")
    return ((item, f"{path}[{index}]") for index, item in enumerate(value))


def read_number(
    value: object,
    path: str,
    *,
    at_least: float = 0.0,
    above: float | None = None,
    at_most: float = MAX_NUMBER,
) -> float:
    """A finite float in the given range; booleans and strings are not numbers."""
    # In Python, though not in JSON, true is the integer 1.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(path, f"must be a number, not {describe(value)}")
    # Before anything that would make a float of it: an integer of 400 digits overflows one.
    if isinstance(value, int) and abs(value) > MAX_NUMBER:
        raise InvalidInput(
            path,
            f"must be at most {at_most:g}, not a whole number of {len(str(abs(value)))} digits",
        )
    if not math.isfinite(value):
        raise InvalidInput(path, f"must be a finite number, not {value}")
    if above is not None and value <= above:
        raise InvalidInput(path, f"must be above {above:g}, not {value:g}")
    if above is None and value < at_least:
        raise InvalidInput(path, f"must be at least {at_least:g}, not {value:g}")
    if value > at_most:
        raise InvalidInput(path, f"must be at most {at_most:g}, not {value:g}")
    return float(value)


def read_integer(value: object, path: str, *, at_least: int = 0) -> int:
    """A whole number ≥ at_least; 4.0 counts as 4, as JSON Schema has it."""
    number = read_number(value, path, at_least=at_least)
    if number != int(number):
        raise InvalidInput(path, f"must be a whole number, not {number:g}")
    return int(number)


def read_text(value: object, path: str) -> str:
    """A string of 1 to 253 characters (the longest DNS name), without control characters."""
    if not isinstance(value, str):
        raise InvalidInput(path, f"must be a string, not {describe(value)}")
    if not 1 <= len(value) <= 253:
        raise InvalidInput(path, f"must have 1 to 253 characters, not {len(value)}")
    if not value.isprintable():
        raise InvalidInput(path, "must not contain control characters")
    return value


def describe(value: object) -> str:
    """A short, safe description of a wrong value for an error message."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "an array"
    # A message goes to terminals and logs: `repr` escapes control characters.
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def document_without(value: object, *names: str) -> dict[str, object]:
    """The JSON object of a dataclass without some of its fields, which are ours and none of the contract's."""
    return {
        name: entry
        for name, entry in fields_document(value).items()
        if name not in names
    }


def refuse_repeats(path: str, names: tuple[object, ...]) -> None:
    """Refuse a name that another entry has. Raises InvalidInput."""
    seen: set[object] = set()
    for name in names:
        if name in seen:
            raise InvalidInput(path, f"{name!r} appears twice; names must be unique")
        seen.add(name)
