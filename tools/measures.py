"""What can be counted in one file: tokens, comments, functions, nesting, parameters, wording.

A token is a name, an operator, a number or a string; docstrings and comments are none. A code line is a physical line
that holds a part of a token. Comments that instruct a tool (`noqa`, `type: ignore`) explain nothing: they do not count.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

from tools.sources import (
    Definition,
    Function,
    line_count,
    string_statements,
    text_of,
    tree_of,
)

_COUNTED = {tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING}
# From Python 3.12 on an f-string is many tokens, before it is one. It counts as one, so that every version agrees.
_FSTRING_START = getattr(tokenize, "FSTRING_START", None)
_FSTRING_END = getattr(tokenize, "FSTRING_END", None)
_DIRECTIVE = re.compile(r"#\s*(?:noqa|type:|pragma|ruff:|mypy:|fmt:|!)")

# The left column of the vocabulary in the style guide. Hyphens and underscores are read as spaces.
_UNWANTED_ANYWHERE = re.compile(
    r"\b(?:company|companies|glances?|glanced|stand ?ins?|pretend(?:ed|s)?|surroundings|believers?|squeez(?:ed?|es|ing)"
    r"|let go|crews?|settlers?|newcomers?|relatives|strangers?|pulses?|dearest|wish(?:es|ed)?|hands? over|handovers?)\b"
)
# Ordinary words in a sentence, but unclear as names.
_UNWANTED_IN_NAMES = re.compile(
    r"\b(?:desk|door|tells?|told|words|kit|taking|whole|left of|rest of|fewest)\b|^(?:most|least)\b"
)
# Refused in comments and docstrings: say "no one" or who is meant, "again", "next to", "besides", or the number.
_UNWANTED_IN_PROSE = re.compile(r"\b(?:nobody|whoever|anew|so\s+many|beside)\b")
_CODE_IN_PROSE = re.compile(r"`[^`]*`|\{[^}]*\}")
_NAME_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

_COMPOUND = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.With,
    ast.AsyncWith,
    ast.Try,
    ast.TryStar,
    ast.Match,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One place that a list shows."""

    path: str
    line: int
    text: str
    amount: int = 1
    """What the list is sorted by, in the measure's unit."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionMeasures:
    """One function or method; a function within it is measured by itself as well."""

    path: str
    line: int
    name: str
    tokens: int
    depth: int
    """Levels of compound statements; `elif` continues the level of its `if`."""
    positional: int
    """Parameters that may be passed by position, without `self` and `cls`.

    Annotated ones are left out: a framework fills them by name, from options or a request.
    """

    def finding(self, amount: int, unit: str) -> Finding:
        """This function in a list."""
        text = f"{self.name}: {amount} {unit}"
        return Finding(path=self.path, line=self.line, text=text, amount=amount)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMeasures:
    """One file."""

    path: str
    lines: int
    code_lines: int
    tokens: int
    comments: int
    functions: tuple[FunctionMeasures, ...]
    public_classes: tuple[Finding, ...]
    """Top-level classes without a leading underscore; `text` is the name."""
    of_docstrings: tuple[Finding, ...]
    """Docstrings that begin with "Of " and so have no subject and verb."""
    unwanted_words: tuple[Finding, ...]


@cache
def measure_file(path: str) -> FileMeasures:
    """The measures of one file, whose path is relative to the project's root."""
    tree = tree_of(path)
    tokens = tuple(tokenize.generate_tokens(io.StringIO(text_of(path)).readline))
    per_line, code_lines = _count_tokens(path, tokens)
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    return FileMeasures(
        path=path,
        lines=line_count(path),
        code_lines=code_lines,
        tokens=sum(per_line),
        comments=sum(not _DIRECTIVE.match(token.string) for token in comments),
        functions=tuple(_measure_functions(path, tree, per_line)),
        public_classes=tuple(
            Finding(path=path, line=node.lineno, text=node.name)
            for node in tree.body
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        ),
        of_docstrings=tuple(
            Finding(path=path, line=node.lineno, text=text.split("\n")[0])
            for node, text in string_statements(path)
            if text.lstrip().startswith("Of ")
        ),
        unwanted_words=tuple(_find_unwanted_words(path, tokens)),
    )


def _count_tokens(
    path: str, tokens: Iterable[tokenize.TokenInfo]
) -> tuple[list[int], int]:
    """The number of tokens that begin on each line (index 0 stays empty), and the number of code lines."""
    docstring_lines = {
        line
        for node, _ in string_statements(path)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    per_line = [0] * (line_count(path) + 2)
    code_lines: set[int] = set()
    for token in _whole_strings(tokens):
        # A statement that is one string has no other tokens on its lines.
        if token.type == tokenize.STRING and token.start[0] in docstring_lines:
            continue
        first, last = token.start[0], token.end[0]
        per_line[first] += 1
        code_lines.add(first)
        if last > first:
            code_lines.update(range(first, last + 1))
    return per_line, len(code_lines)


def _whole_strings(
    tokens: Iterable[tokenize.TokenInfo],
) -> Iterator[tokenize.TokenInfo]:
    """The tokens that count; an f-string is one of them."""
    open_strings = 0
    start = (0, 0)
    for token in tokens:
        if token.type == _FSTRING_START:
            start = start if open_strings else token.start
            open_strings += 1
        elif token.type == _FSTRING_END:
            open_strings -= 1
            if not open_strings:
                yield token._replace(type=tokenize.STRING, start=start)
        elif token.type in _COUNTED and not open_strings:
            yield token


def _measure_functions(
    path: str, tree: ast.Module, per_line: list[int]
) -> Iterator[FunctionMeasures]:
    # Tokens before each line, so that a function's tokens are one difference.
    before = [0, *accumulate(per_line)]
    for node, name, is_method in _functions(tree.body):
        last = (node.end_lineno or node.lineno) + 1
        yield FunctionMeasures(
            path=path,
            line=node.lineno,
            name=name,
            tokens=before[last] - before[node.lineno],
            depth=_max_depth(node.body),
            positional=_positional_parameters(node) - is_method,
        )


def _positional_parameters(node: Function) -> int:
    parameters = [*node.args.posonlyargs, *node.args.args]
    return sum(not _is_annotated(parameter.annotation) for parameter in parameters)


def _is_annotated(annotation: ast.expr | None) -> bool:
    return (
        isinstance(annotation, ast.Subscript)
        and isinstance(annotation.value, ast.Name)
        and annotation.value.id == "Annotated"
    )


def _functions(
    body: Iterable[ast.AST], prefix: str = "", in_class: bool = False
) -> Iterator[tuple[Function, str, bool]]:
    """All functions with their qualified names, and whether their first parameter is `self` or `cls`."""
    for node in body:
        if isinstance(node, Function):
            yield node, prefix + node.name, in_class and not _is_static(node)
        if isinstance(node, Definition):
            yield from _functions(
                node.body, f"{prefix}{node.name}.", isinstance(node, ast.ClassDef)
            )
        elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _functions(ast.iter_child_nodes(node), prefix, in_class)


def _is_static(node: Function) -> bool:
    return any(
        isinstance(decorator, ast.Name) and decorator.id == "staticmethod"
        for decorator in node.decorator_list
    )


def _max_depth(body: Iterable[ast.stmt]) -> int:
    return max((_depth(statement) for statement in body), default=0)


def _depth(statement: ast.stmt) -> int:
    """Levels of compound statements, this one included; definitions within it begin again."""
    if not isinstance(statement, _COMPOUND):
        return 0
    if isinstance(statement, ast.If):
        return max(1 + _max_depth(statement.body), _depth_of_else(statement))
    return 1 + _max_depth(_inner_statements(statement))


def _inner_statements(statement: ast.stmt) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, ast.excepthandler | ast.match_case):
            yield from _inner_body(child)


def _inner_body(block: ast.excepthandler | ast.match_case) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(block):
        if isinstance(child, ast.stmt):
            yield child


def _depth_of_else(statement: ast.If) -> int:
    following = statement.orelse
    # Python has no node for `elif`: it is an `if` in the column of the one before.
    is_elif = (
        len(following) == 1
        and isinstance(following[0], ast.If)
        and following[0].col_offset == statement.col_offset
    )
    return _depth(following[0]) if is_elif else 1 + _max_depth(following)


def _find_unwanted_words(
    path: str, tokens: Iterable[tokenize.TokenInfo]
) -> Iterator[Finding]:
    """Each unwanted name once per file, and each comment or text that holds an unwanted word."""
    seen: set[str] = set()
    for token in tokens:
        if token.type == tokenize.COMMENT:
            prose = re.sub(r"[-_]", " ", token.string.lower())
            is_unwanted = _UNWANTED_ANYWHERE.search(
                prose
            ) is not None or is_unwanted_prose(prose)
        elif token.type == tokenize.STRING:
            is_unwanted = is_unwanted_prose(token.string)
        # Once per file: a name counts by where it has to be changed, not by how often it is written.
        elif token.type == tokenize.NAME and token.string not in seen:
            seen.add(token.string)
            is_unwanted = is_unwanted_name(token.string)
        else:
            continue
        if is_unwanted:
            yield Finding(path=path, line=token.start[0], text=token.string)


def is_unwanted_prose(text: str) -> bool:
    """Whether a sentence holds a word that it should not; names in backquotes or braces, and single words, may."""
    prose = _CODE_IN_PROSE.sub("", text.lower())
    return " " in prose.strip() and _UNWANTED_IN_PROSE.search(prose) is not None


@cache
def is_unwanted_name(name: str) -> bool:
    """Whether an identifier holds a word from the vocabulary's left column."""
    # Word by word, so that `accompany` does not count as `company`.
    words = " ".join(_NAME_PART.findall(name)).lower()
    return any(
        pattern.search(words) for pattern in (_UNWANTED_ANYWHERE, _UNWANTED_IN_NAMES)
    )
