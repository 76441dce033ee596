"""YAML documents whose fields know their lines. JSON is YAML, too."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import yaml

FieldPath = tuple[str | int, ...]

MAX_DEPTH = 100
"""Fields within fields: a walk through a document needs a few calls for each."""
MAX_DIGITS = 1000
"""Python refuses to write larger whole numbers down, as complaints do."""
MAX_REPEATED = 1_000_000
"""Values that aliases may stand for in all: a few nested ones unfold to gigabytes ("billion laughs")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One document of a file."""

    value: object
    lines: Mapping[FieldPath, int]
    """Line of every field, by path."""

    def line(self, path: FieldPath) -> int:
        """Line of a field, or of the nearest one around it that is written."""
        while path not in self.lines:
            path = path[:-1]
        return self.lines[path]


_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")

Complain = Callable[[int, str, str], None]
"""Takes line, field and what is wrong with it."""


def read_documents(text: str, complain: Complain) -> Iterator[Document]:
    """The documents of a text. Where it stops being YAML, and for a key that is given twice, it complains."""
    try:
        with _loading(text) as loader:
            yield from _documents(loader, complain)
    except yaml.MarkedYAMLError as error:
        complain(
            error.problem_mark.line + 1 if error.problem_mark else 1,
            "",
            f"not YAML: {error.problem}",
        )
    except yaml.YAMLError as error:
        complain(1, "", f"not YAML: {error}")
    except RecursionError:
        complain(1, "", "not YAML that can be read: nested too deeply")


def _documents(loader: yaml.SafeLoader, complain: Complain) -> Iterator[Document]:
    while loader.check_node():
        node = loader.get_node()
        if node is None:
            return
        lines: dict[FieldPath, int] = {}
        # Lines first: they find what is nested too deeply or too long before it is built.
        _note_lines(node, (), lines, set(), complain)
        sizes: dict[yaml.Node, int] = {}
        if _size(node, sizes) > MAX_REPEATED + len(sizes):
            raise _unreadable(
                f"its aliases stand for more than {MAX_REPEATED:,} values", node
            )
        value = _value(loader, node)
        # Text between two `---` may be comments alone.
        if value is not None:
            yield Document(value=value, lines=lines)


def line_of_alias(text: str) -> int | None:
    """Where the first alias stands: a few make a small text a huge document. What is nested too deeply is left out."""
    depth = 0
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
                event, yaml.CollectionEndEvent
            )
            # Each further level takes longer than all before: minutes for a few thousand.
            if depth > MAX_DEPTH:
                return None
            if isinstance(event, yaml.AliasEvent):
                return event.start_mark.line + 1 if event.start_mark else 1
    except (yaml.YAMLError, RecursionError):
        # The reader of the text says what is wrong with it.
        pass
    return None


def dotted(path: FieldPath) -> str:
    """`spec.gpus[0].gpu_type`."""
    text = ""
    for part in path:
        text += (
            f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
        )
    return text


@contextmanager
def _loading(text: str) -> Iterator[yaml.SafeLoader]:
    """A loader; to make one fails already where the text has characters that YAML has not."""
    loader = yaml.SafeLoader(text)
    try:
        yield loader
    finally:
        loader.dispose()


def _value(loader: yaml.SafeLoader, node: yaml.Node) -> object:
    """What a document means. Raises MarkedYAMLError."""
    try:
        value: object = loader.construct_document(node)
    except ValueError as error:
        # A date like 2026-13-40.
        raise _unreadable(str(error), node) from error
    except (LookupError, AttributeError, ArithmeticError) as error:
        # PyYAML trusts tags, also those of `!!bool maybe`.
        raise _unreadable("a value that does not match its tag", node) from error
    return value


def _unreadable(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _note_lines(
    node: yaml.Node,
    path: FieldPath,
    lines: dict[FieldPath, int],
    seen: set[yaml.Node],
    complain: Complain,
) -> None:
    if len(path) > MAX_DEPTH:
        raise _unreadable("nested too deeply", node)
    if node.tag in _NUMBERS and len(node.value) > MAX_DIGITS:
        raise _unreadable(f"a number of {len(node.value):,} digits", node)
    lines.setdefault(path, node.start_mark.line + 1)
    # An alias: its lines are those of the anchor, and it may even hold itself.
    if node in seen:
        return
    seen.add(node)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _note_lines(item, (*path, index), lines, seen, complain)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*path, str(key.value))
            line = key.start_mark.line + 1
            # YAML takes the last one; an author of both meant something else.
            if inner in lines:
                complain(
                    line,
                    dotted(inner),
                    f"is given twice, first in line {lines[inner]}; keep one of them",
                )
            lines[inner] = line
            _note_lines(value, inner, lines, seen, complain)


def _size(node: yaml.Node, sizes: dict[yaml.Node, int]) -> int:
    """How many values a node stands for, each alias written out; what holds itself is counted once there."""
    if node not in sizes:
        sizes[node] = 1
        inner: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            inner = node.value
        elif isinstance(node, yaml.MappingNode):
            inner = [each for pair in node.value for each in pair]
        sizes[node] += sum(_size(each, sizes) for each in inner)
    return sizes[node]
