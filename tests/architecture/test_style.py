"""The source keeps its structure, and what is not yet as the style guide asks gets no worse.

Each `MAX_` and `MIN_` is a ratchet: the figure of today, which a change may improve and not worsen. Whoever improves
one puts the new figure here; `python -m tools.house --ratchets` prints the block.
"""

import ast
from collections.abc import Iterable

import pytest

from tools import house
from tools.measures import Finding
from tools.sources import PACKAGES, python_files, tree_of

MAX_NESTED = 3
MAX_POSITIONAL = 12
MAX_LARGE_FUNCTIONS = 2
MAX_OF_DOCSTRINGS = 0
MAX_UNWANTED_WORDS = 122
MAX_UNREACHABLE_LINES = 0
MAX_TOKENS_MEDIAN = {
    "app": 65,
    "agents": 52,
    "solvers": 78,
}
MAX_TOKENS_P90 = {
    "app": 153,
    "agents": 143,
    "solvers": 162,
    "solvers/joint": 180,
}
MAX_TOKENS_PER_CODE_LINE = {
    "app": 7.1,
    # 7.3 until the stand-in's own histograms, a hundred sparse lines, gave way to a library's.
    "agents": 7.4,
    "solvers": 8.6,
}
MIN_COMMENTS_PER_100_LINES = {
    "app": 3.9,
    "agents": 3.4,
    "solvers": 4.0,
}
LONG_FILES = {
    "bench/compare.py": 529,
    "bench/papers/morak.py": 477,
    "bench/papers/morak_stage.py": 477,
    "bench/papers/mudi.py": 463,
    "bench/predict.py": 420,
    "bench/router.py": 450,
    "tests/agents/doctor/test_doctor.py": 522,
    "tests/agents/gpu/mps/test_mps.py": 617,
    "tests/agents/router/test_router_http.py": 521,
    "tests/integration/test_api_decisions.py": 635,
    "tests/integration/test_cli.py": 523,
    "tests/integration/test_fits.py": 593,
    "tests/integration/test_postgres.py": 529,
    "tests/integration/test_repositories.py": 586,
    "tests/solvers/greedy/test_policy.py": 543,
    "tests/solvers/papers/hetsev/test_policy.py": 591,
    "tests/solvers/papers/inss/test_policy.py": 511,
    "tests/solvers/test_check.py": 568,
    "tests/solvers/tick/test_bind.py": 541,
}
"""Files above 400 lines, tests above 500, with the lines that they had: each may only get shorter."""


def shown(found: Iterable[Finding], remedy: str) -> str:
    """What pytest prints on failure: what to do, then the places, the worst first."""
    places = sorted(found, key=lambda each: (-each.amount, each.path, each.line))
    return "\n".join([remedy, *map(str, places)])


def test_no_files_import_each_other_in_a_circle() -> None:
    found = house.file_circles(PACKAGES)
    remedy = "Move what both need into a file below them."
    assert found == [], shown(found, remedy)


def test_between_folders_imports_run_one_way() -> None:
    found = house.two_way(PACKAGES)
    remedy = "Move what the rarer direction imports into the lower folder."
    assert found == [], shown(found, remedy)


def test_no_public_class_name_exists_twice() -> None:
    found = house.repeated_classes(PACKAGES)
    remedy = "The central noun keeps the short name; every other says what it is of."
    assert found == [], shown(found, remedy)


def test_no_folder_holds_more_than_fifteen_modules() -> None:
    found = house.large_folders(PACKAGES)
    remedy = "Give a part of the modules that has a purpose of its own a folder."
    assert found == [], shown(found, remedy)


def test_no_file_gets_longer_than_the_limit() -> None:
    lengths = house.long_files((*PACKAGES, *house.SURROUNDING))
    longer = {
        path: lines
        for path, lines in lengths.items()
        if lines > LONG_FILES.get(path, 0)
    }
    assert longer == {}, "Split the file: one purpose each, said in its docstring."


def test_no_more_functions_are_nested_deeper_than_three_levels() -> None:
    found = house.nested_functions(PACKAGES)
    remedy = "Return early, or make the inner block a function."
    assert len(found) <= MAX_NESTED, shown(found, remedy)


def test_no_more_functions_take_above_five_positional_parameters() -> None:
    found = house.positional_functions(PACKAGES)
    remedy = "Pass a dataclass, or make parameters keyword-only."
    assert len(found) <= MAX_POSITIONAL, shown(found, remedy)


def test_no_more_functions_are_above_400_tokens() -> None:
    found = house.large_functions(PACKAGES)
    remedy = "Branches in the parent, loops in functions that it calls."
    assert len(found) <= MAX_LARGE_FUNCTIONS, shown(found, remedy)


@pytest.mark.parametrize("folder", PACKAGES)
def test_the_median_function_gets_no_larger(folder: str) -> None:
    assert house.median_tokens(folder) <= MAX_TOKENS_MEDIAN[folder]


@pytest.mark.parametrize("folder", house.P90_FOLDERS)
def test_nine_of_ten_functions_get_no_larger(folder: str) -> None:
    assert house.p90_tokens(folder) <= MAX_TOKENS_P90[folder]


@pytest.mark.parametrize("folder", PACKAGES)
def test_code_gets_no_denser(folder: str) -> None:
    measured = house.tokens_per_code_line(folder)
    remedy = "One thought per line; name what a reader would have to hold in mind."
    assert measured <= MAX_TOKENS_PER_CODE_LINE[folder], remedy


@pytest.mark.parametrize("folder", PACKAGES)
def test_comments_get_no_rarer(folder: str) -> None:
    measured = house.comments_per_100_lines(folder)
    remedy = "Say why, at each step that a reader would question."
    assert measured >= MIN_COMMENTS_PER_100_LINES[folder], remedy


def test_no_more_docstrings_begin_with_of() -> None:
    found = house.of_docstrings(PACKAGES)
    remedy = "Write a sentence with a subject and a verb, or the noun that it is."
    assert len(found) <= MAX_OF_DOCSTRINGS, shown(found, remedy)


def test_no_more_names_and_comments_hold_unwanted_words() -> None:
    found = house.unwanted_words(PACKAGES)
    remedy = "Use the field's word: fake, poll, neighbours, context, message, integer."
    assert len(found) <= MAX_UNWANTED_WORDS, shown(found, remedy)


def test_no_more_lines_are_out_of_reach_of_every_command() -> None:
    found = house.unreachable_source(PACKAGES)
    lines = sum(each.amount for each in found)
    remedy = "Delete it, or call it from a command."
    assert lines <= MAX_UNREACHABLE_LINES, shown(found, remedy)


@pytest.mark.parametrize("folder", (*PACKAGES, "tools"))
def test_every_module_says_what_it_is_for(folder: str) -> None:
    silent = [
        path for path in python_files(folder) if not ast.get_docstring(tree_of(path))
    ]
    assert silent == []


@pytest.mark.parametrize("folder", ("solvers", "agents", "tools"))
def test_every_public_function_and_class_has_a_docstring(folder: str) -> None:
    bare = [
        f"{path}:{node.lineno} {node.name}"
        for path in python_files(folder)
        for node in tree_of(path).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert bare == []
