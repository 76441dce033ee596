"""What `-o jsonpath=` and `--for jsonpath=` take: kubectl's templates, but for its regular expressions. Pure.

{.status.state}                                a path; what is not there prints nothing
{.items[*].metadata.name}                      several values are printed with a blank between them
{.a['b.c']} {.a[0]} {.a[-1]} {.a[1:3]} {..x}   keys, indices, slices, and a key at any depth
{.a[?(@.type=="Ready")].status}                entries for which == != < <= > >= holds, or that have a field
{range .items[*]}{.id}{"\\n"}{end}              once for each value
"""

import json
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import typer

MAX_LENGTH = 4096
"""A whole template has no more: enough for any that a person types."""
MAX_NESTING = 8
"""Loops in loops: each multiplies what is printed."""

Step: TypeAlias = Callable[[object], Iterator[object]]
"""The values that one value leads to."""

ORDERS: dict[str, Callable[[float | str, float | str], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}

_QUOTED = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
_BLOCK = re.compile(rf"\{{((?:{_QUOTED}|[^{{}}\"'])*)\}}")
_KEY = re.compile(r"\.((?:[^\s.\[\]\"'()=!<>*,\\]|\\.)+)")
_BRACKET = re.compile(rf"\[((?:{_QUOTED}|\[[^\[\]]*\]|[^\[\]\"'])*)\]")
_FILTER = re.compile(
    rf"\?\(\s*@((?:{_QUOTED}|[^\s=!<>()])*)\s*(?:(==|!=|<=|>=|<|>)\s*(.+?))?\s*\)"
)
_SLICE = re.compile(r"(-?\d{1,9})?:(-?\d{1,9})?")
_INDEX = re.compile(r"-?\d{1,9}")
_ENTRY = re.compile(rf"\s*({_QUOTED}|[^,\"']+?)\s*(?:,|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonPathBlock:
    """One piece of a template: text as it is, a path, or a loop over a path with a body of its own."""

    text: str = ""
    path: tuple[Step, ...] | None = None
    body: "tuple[JsonPathBlock, ...] | None" = None
    """None: no loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonPath:
    """A whole template."""

    blocks: tuple[JsonPathBlock, ...]

    def render(self, document: object) -> str:
        """What it makes of a JSON document; like kubectl's, without a line end of its own."""
        return "".join(_rendered(self.blocks, document))


def parse_jsonpath(typed: str) -> JsonPath:
    """The template that somebody typed; without any brace it is one path. Raises BadParameter."""
    if len(typed) > MAX_LENGTH:
        raise _fault(
            f"the template has {len(typed)} characters, and at most {MAX_LENGTH}"
        )
    blocks = list(_split(typed if "{" in typed else f"{{{typed}}}"))
    parsed, rest = _parse(blocks, depth=0)
    if rest:
        raise _fault("there is an {end} without its {range}")
    return JsonPath(blocks=parsed)


def _fault(problem: str) -> typer.BadParameter:
    return typer.BadParameter(
        f"jsonpath: {problem}; write for example '{{.status.conditions[*].type}}'"
    )


def _split(typed: str) -> Iterator[tuple[bool, str]]:
    """(is it in braces, text) for each part of a template."""
    at = 0
    for block in _BLOCK.finditer(typed):
        yield False, typed[at : block.start()]
        yield True, block[1].strip()
        at = block.end()
    yield False, typed[at:]


def _parse(
    parts: list[tuple[bool, str]], *, depth: int
) -> tuple[tuple[JsonPathBlock, ...], list[tuple[bool, str]]]:
    """The blocks up to an `{end}` or the last part, and what is left from that `{end}` on."""
    if depth > MAX_NESTING:
        raise _fault(f"loops are nested more than {MAX_NESTING} deep")
    blocks: list[JsonPathBlock] = []
    while parts:
        (is_block, text), *rest = parts
        if is_block and text == "end":
            return tuple(blocks), parts
        if is_block and re.match(r"range\s", text):
            body, left = _parse(rest, depth=depth + 1)
            if not left:
                raise _fault("a {range} has no {end}")
            path = _parse_path(text.removeprefix("range").strip())
            blocks.append(JsonPathBlock(path=path, body=body))
            # Without the end of this loop.
            parts = left[1:]
            continue
        blocks.append(_parse_block(text) if is_block else _parse_text(text))
        parts = rest
    return tuple(blocks), []


def _parse_text(text: str) -> JsonPathBlock:
    # What is no block and has a brace was meant as one.
    if "{" in text or "}" in text:
        raise _fault(f"a brace is not closed, or not opened, in {text!r}")
    return JsonPathBlock(text=text)


def _parse_block(text: str) -> JsonPathBlock:
    if re.fullmatch(_QUOTED, text):
        return JsonPathBlock(text=_unquoted(text))
    return JsonPathBlock(path=_parse_path(text))


def _parse_path(text: str) -> tuple[Step, ...]:
    """The steps of `.a.b[0]`, `$.a`, `@.a` or `a`. Raises BadParameter."""
    rest = text.removeprefix("$").removeprefix("@")
    if not text:
        raise _fault("a path is empty")
    # A path may leave its first dot out.
    if rest and rest[0] not in ".[":
        rest = f".{rest}"
    steps: list[Step] = []
    while rest and rest != ".":
        if rest.startswith(".."):
            steps.append(_descendants)
            rest = rest[2:] if rest[2:3] == "[" else rest[1:]
            continue
        step, rest = _parse_step(rest, text)
        steps.append(step)
    return tuple(steps)


def _parse_step(rest: str, text: str) -> tuple[Step, str]:
    """The first step of what is left of a path, and what is left after it."""
    if rest.startswith("["):
        bracket = _BRACKET.match(rest)
        if bracket is None:
            raise _fault(f"a bracket is not closed in {text!r}")
        return _parse_bracket(bracket[1].strip(), text), rest[bracket.end() :]
    if rest.startswith(".*"):
        return _every, rest[2:]
    key = _KEY.match(rest)
    if key is None:
        raise _fault(f"{text!r} cannot be parsed from {rest!r} on")
    return _by_key(re.sub(r"\\(.)", r"\1", key[1])), rest[key.end() :]


def _parse_bracket(inside: str, text: str) -> Step:
    if inside.startswith("?"):
        return _parse_filter(inside)
    entries = list(_ENTRY.finditer(inside))
    # finditer skips what it cannot read: put together again, the entries must be all that was typed.
    if not entries or "".join(found[0] for found in entries) != inside:
        raise _fault(f"[{inside}] cannot be read in {text!r}")
    steps = [_parse_entry(found[1]) for found in entries]
    return lambda value: chain.from_iterable(step(value) for step in steps)


def _parse_entry(entry: str) -> Step:
    """One of the entries, between commas, of a bracket."""
    if entry == "*":
        return _every
    if entry[0] in "\"'":
        return _by_key(_unquoted(entry))
    if _INDEX.fullmatch(entry):
        return _by_slice(int(entry), is_one=True)
    if cut := _SLICE.fullmatch(entry):
        first, end = (None if each is None else int(each) for each in cut.groups())
        return _by_slice(first, end)
    raise _fault(f"[{entry}] is not an index, slice, filter or quoted key")


def _parse_filter(inside: str) -> Step:
    found = _FILTER.fullmatch(inside)
    if found is None:
        raise _fault(f'[{inside}] is not a filter such as [?(@.type=="Ready")]')
    path = _parse_path(found[1] or ".")
    sign = found[2]
    wanted = _parse_literal(found[3]) if sign else None

    def holds(entry: object) -> bool:
        values = list(_walk(path, entry))
        if not sign:
            return bool(values)
        return any(_compare(value, sign, wanted) for value in values)

    return lambda value: filter(holds, _every(value))


def _parse_literal(typed: str) -> object:
    if re.fullmatch(_QUOTED, typed):
        return _unquoted(typed)
    try:
        return json.loads(typed)
    except ValueError as error:
        raise _fault(f"{typed!r} is neither a number nor a quoted text") from error


def _compare(value: object, sign: str, wanted: object) -> bool:
    # In Python True is equal to 1; in JSON it is not.
    is_equal = value == wanted and isinstance(value, bool) == isinstance(wanted, bool)
    if sign in ("==", "!="):
        return is_equal == (sign == "==")
    for kinds in (int | float, str):
        if isinstance(value, kinds) and isinstance(wanted, kinds):
            return ORDERS[sign](value, wanted)
    # Values of different kinds have no order.
    return False


def _unquoted(text: str) -> str:
    return re.sub(
        r"\\(.)", lambda found: ESCAPES.get(found[1], found[1]), text[1:-1], flags=re.S
    )


def _rendered(blocks: tuple[JsonPathBlock, ...], document: object) -> Iterator[str]:
    for block in blocks:
        if block.path is None:
            yield block.text
            continue
        values = _walk(block.path, document)
        if block.body is None:
            yield " ".join(map(_text, values))
            continue
        for value in values:
            yield from _rendered(block.body, value)


def _walk(path: tuple[Step, ...], document: object) -> Iterator[object]:
    values: Iterator[object] = iter((document,))
    for step in path:
        values = chain.from_iterable(map(step, values))
    return values


def _by_key(key: str) -> Step:
    def step(value: object) -> Iterator[object]:
        if isinstance(value, dict) and key in value:
            yield value[key]

    return step


def _by_slice(
    first: int | None, end: int | None = None, *, is_one: bool = False
) -> Step:
    def step(value: object) -> Iterator[object]:
        if not isinstance(value, list):
            return
        if not is_one:
            yield from value[first:end]
        elif first is not None and -len(value) <= first < len(value):
            yield value[first]

    return step


def _every(value: object) -> Iterator[object]:
    if isinstance(value, list):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()


def _descendants(value: object) -> Iterator[object]:
    """The value, and all that is in it."""
    yield value
    for inner in _every(value):
        yield from _descendants(inner)


def _text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
