"""How the source is built, in figures: `python -m tools.house [--in FOLDER] [--list WHAT] [--ratchets] [--json FILE]`.

Without options it prints a table for app, agents and solvers, each by itself and together. `--list` shows the places
behind one figure, the worst first; `--ratchets` prints the constants that tests/architecture/test_style.py holds,
as the tree stands now.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from pprint import pformat
from statistics import median_low

from tools.imports import arrows, circles, two_way_arrows
from tools.measures import FileMeasures, Finding, FunctionMeasures, measure_file
from tools.reachability import unreachable
from tools.sources import PACKAGES, is_within, line_count, python_files

MAX_DEPTH = 3
MAX_POSITIONAL = 5
MAX_FUNCTION_TOKENS = 400
MANY_FUNCTION_TOKENS = 160
"""The goal for nine of ten functions; those above it are listed."""
MAX_FILE_LINES = 400
MAX_TEST_LINES = 500
MAX_FOLDER_MODULES = 15
P90_FOLDERS = (*PACKAGES, "solvers/joint")
"""Folders whose larger functions are held by a figure of their own."""
SURROUNDING = ("bench", "migrations", "tools", "tests")
"""What is not installed: only the length of its files is held."""


def files_in(folders: Iterable[str]) -> list[FileMeasures]:
    """The measures of all files below some folders."""
    return [measure_file(path) for folder in folders for path in python_files(folder)]


def functions_in(folders: Iterable[str]) -> list[FunctionMeasures]:
    """The measures of all functions and methods below some folders."""
    return [each for file in files_in(folders) for each in file.functions]


def tokens_per_code_line(*folders: str) -> float:
    """With one decimal."""
    files = files_in(folders)
    lines = sum(file.code_lines for file in files)
    return round(sum(file.tokens for file in files) / max(lines, 1), 1)


def comments_per_100_lines(*folders: str) -> float:
    """Comments per 100 code lines, with one decimal."""
    files = files_in(folders)
    lines = sum(file.code_lines for file in files)
    return round(100 * sum(file.comments for file in files) / max(lines, 1), 1)


def median_tokens(*folders: str) -> int:
    """Tokens of the median function."""
    return median_low([each.tokens for each in functions_in(folders)] or [0])


def p90_tokens(*folders: str) -> int:
    """Tokens that nine of ten functions do not exceed."""
    tokens = sorted(each.tokens for each in functions_in(folders)) or [0]
    # The nearest rank, rounded up, so that the figure is one of a function that exists.
    return tokens[-(-9 * len(tokens) // 10) - 1]


def large_functions(
    folders: Iterable[str], limit: int = MAX_FUNCTION_TOKENS
) -> list[Finding]:
    """Functions above a limit of tokens."""
    found = (each for each in functions_in(folders) if each.tokens > limit)
    return [each.finding(each.tokens, "tokens") for each in found]


def nested_functions(folders: Iterable[str]) -> list[Finding]:
    """Functions that are nested too deeply."""
    found = (each for each in functions_in(folders) if each.depth > MAX_DEPTH)
    return [each.finding(each.depth, "levels") for each in found]


def positional_functions(folders: Iterable[str]) -> list[Finding]:
    """Functions with too many parameters that may be passed by position."""
    found = (each for each in functions_in(folders) if each.positional > MAX_POSITIONAL)
    return [each.finding(each.positional, "positional parameters") for each in found]


def long_files(folders: Iterable[str]) -> dict[str, int]:
    """Lines of the files above the limit, which is higher for tests."""
    lengths = {
        path: line_count(path) for each in folders for path in python_files(each)
    }
    return {
        path: lines
        for path, lines in lengths.items()
        if lines > (MAX_TEST_LINES if is_within(path, "tests") else MAX_FILE_LINES)
    }


def sparse_files(folders: Iterable[str]) -> list[Finding]:
    """Files by the number of comments that they lack to reach three per 100 code lines."""
    return [
        Finding(
            path=file.path,
            line=1,
            text=f"{file.comments} comments in {file.code_lines} code lines",
            amount=lacking,
        )
        for file in files_in(folders)
        if (lacking := round(0.03 * file.code_lines) - file.comments) > 0
    ]


def repeated_classes(folders: Iterable[str]) -> list[Finding]:
    """Public classes whose name another one of the installed packages has too."""
    # Always among all packages: a name in one that another has too confuses as much.
    places = defaultdict(list)
    for file in files_in(PACKAGES):
        for each in file.public_classes:
            places[each.text].append(each)
    again = [each for found in places.values() if len(found) > 1 for each in found]
    return _within(folders, again)


def large_folders(folders: Iterable[str]) -> list[Finding]:
    """Folders with too many modules, `__init__` not counted."""
    count: dict[str, int] = defaultdict(int)
    for file in files_in(folders):
        path = PurePosixPath(file.path)
        count[path.parent.as_posix()] += path.name != "__init__.py"
    return [
        Finding(path=folder, line=1, text=f"{modules} modules", amount=modules)
        for folder, modules in count.items()
        if modules > MAX_FOLDER_MODULES
    ]


def two_way(folders: Iterable[str]) -> list[Finding]:
    """Pairs of folders that import each other, with the imports of the rarer direction."""
    found = []
    for (a, b), directions in two_way_arrows(arrows()).items():
        rarer = ", ".join(
            f"{start} -> {end}" for start, end in min(directions, key=len)
        )
        found.append(Finding(path=a, line=1, text=f"and {b}: {rarer}"))
    return _within(folders, found)


def file_circles(folders: Iterable[str]) -> list[Finding]:
    """Groups of files that import each other in a circle."""
    found = [
        Finding(path=group[0], line=1, text=" ".join(group[1:]), amount=len(group))
        for group in circles(arrows())
    ]
    return _within(folders, found)


def unreachable_source(folders: Iterable[str]) -> list[Finding]:
    """Modules and definitions that no command reaches."""
    return _within(folders, unreachable())


def of_docstrings(folders: Iterable[str]) -> list[Finding]:
    """Docstrings that begin with "Of "."""
    return [each for file in files_in(folders) for each in file.of_docstrings]


def unwanted_words(folders: Iterable[str]) -> list[Finding]:
    """Names and comments that hold a word which the style guide replaces."""
    return [each for file in files_in(folders) for each in file.unwanted_words]


def _within(folders: Iterable[str], found: Iterable[Finding]) -> list[Finding]:
    wanted = tuple(folders)
    return [each for each in found if any(is_within(each.path, f) for f in wanted)]


LISTS: dict[str, Callable[[Iterable[str]], list[Finding]]] = {
    "functions": lambda folders: large_functions(folders, MANY_FUNCTION_TOKENS),
    "nesting": nested_functions,
    "positional": positional_functions,
    "comments": sparse_files,
    "files": lambda folders: [
        Finding(path=path, line=1, text=f"{lines} lines", amount=lines)
        for path, lines in long_files(folders).items()
    ],
    "classes": repeated_classes,
    "words": unwanted_words,
    "arrows": lambda folders: two_way(folders) + file_circles(folders),
    "unreachable": unreachable_source,
    "docstrings": of_docstrings,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderMeasures:
    """One column of the table."""

    files: int
    lines: int
    tokens: int
    tokens_per_code_line: float
    comments_per_100_code_lines: float
    functions: int
    tokens_per_function_median: int
    tokens_per_function_p90: int
    tokens_per_function_max: int
    functions_above_400_tokens: int
    functions_nested_deeper_than_3: int
    functions_above_5_positional: int
    files_above_400_lines: int
    class_names_more_than_once: int
    folders_above_15_modules: int
    two_way_arrows: int
    circles_of_files: int
    unreachable_lines: int
    docstrings_beginning_with_of: int
    unwanted_words: int


def measure_folders(*folders: str) -> FolderMeasures:
    """All figures of some folders together."""
    files, functions = files_in(folders), functions_in(folders)
    return FolderMeasures(
        files=len(files),
        lines=sum(file.lines for file in files),
        tokens=sum(file.tokens for file in files),
        tokens_per_code_line=tokens_per_code_line(*folders),
        comments_per_100_code_lines=comments_per_100_lines(*folders),
        functions=len(functions),
        tokens_per_function_median=median_tokens(*folders),
        tokens_per_function_p90=p90_tokens(*folders),
        tokens_per_function_max=max((each.tokens for each in functions), default=0),
        functions_above_400_tokens=len(large_functions(folders)),
        functions_nested_deeper_than_3=len(nested_functions(folders)),
        functions_above_5_positional=len(positional_functions(folders)),
        files_above_400_lines=len(long_files(folders)),
        class_names_more_than_once=len(repeated_classes(folders)),
        folders_above_15_modules=len(large_folders(folders)),
        two_way_arrows=len(two_way(folders)),
        circles_of_files=len(file_circles(folders)),
        unreachable_lines=sum(each.amount for each in unreachable_source(folders)),
        docstrings_beginning_with_of=len(of_docstrings(folders)),
        unwanted_words=len(unwanted_words(folders)),
    )


def ratchets() -> dict[str, object]:
    """Today's figures by the names of the constants in tests/architecture/test_style.py."""
    return {
        "MAX_NESTED": len(nested_functions(PACKAGES)),
        "MAX_POSITIONAL": len(positional_functions(PACKAGES)),
        "MAX_LARGE_FUNCTIONS": len(large_functions(PACKAGES)),
        "MAX_OF_DOCSTRINGS": len(of_docstrings(PACKAGES)),
        "MAX_UNWANTED_WORDS": len(unwanted_words(PACKAGES)),
        "MAX_UNREACHABLE_LINES": sum(each.amount for each in unreachable()),
        "MAX_TOKENS_MEDIAN": {each: median_tokens(each) for each in PACKAGES},
        "MAX_TOKENS_P90": {each: p90_tokens(each) for each in P90_FOLDERS},
        "MAX_TOKENS_PER_CODE_LINE": {
            each: tokens_per_code_line(each) for each in PACKAGES
        },
        "MIN_COMMENTS_PER_100_LINES": {
            each: comments_per_100_lines(each) for each in PACKAGES
        },
        "LONG_FILES": long_files((*PACKAGES, *SURROUNDING)),
    }


def table(columns: dict[str, FolderMeasures]) -> str:
    """One row per measure, one column per folder."""
    width = max(10, *(len(folder) + 2 for folder in columns))
    rows = [" " * 32 + "".join(f"{folder:>{width}}" for folder in columns)]
    for name in FolderMeasures.__dataclass_fields__:
        cells = (getattr(each, name) for each in columns.values())
        title = name.replace("_", " ")
        rows.append(f"{title:32}" + "".join(f"{cell:>{width},}" for cell in cells))
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what the arguments ask for."""
    parser = argparse.ArgumentParser(prog="tools.house", description=__doc__)
    parser.add_argument("--in", dest="folders", nargs="+", default=PACKAGES)
    parser.add_argument("--list", dest="listed", choices=LISTS)
    parser.add_argument("--ratchets", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    folders = tuple(folder.rstrip("/") for folder in options.folders)
    if options.ratchets:
        _say(*(f"{name} = {_literal(value)}" for name, value in ratchets().items()))
    elif options.listed:
        found = LISTS[options.listed](folders)
        _say(*sorted(found, key=lambda each: (-each.amount, each.path, each.line)))
    else:
        columns = {folder: measure_folders(folder) for folder in folders}
        if len(folders) > 1:
            columns["together"] = measure_folders(*folders)
        _say(table(columns))
        if options.json:
            figures = {folder: asdict(each) for folder, each in columns.items()}
            options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def _literal(value: object) -> str:
    """Python text in which each entry of a dictionary has its line."""
    if not isinstance(value, dict):
        return str(value)
    entries = (f'    "{key}": {pformat(each)},\n' for key, each in value.items())
    return "{\n" + "".join(entries) + "}"


def _say(*lines: object) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
