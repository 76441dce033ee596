"""The command line as such: help, usage, exit codes, and that help loads no heavy library."""

import subprocess
import sys

import pytest

from app.cli.commands import ENTRIES, PASSED_ON, Commands
from tests.app.runner import cli
from tests.ports import own_environment
from tests.waiting import PATIENCE_S
from tools.documents import cli as document

HEAVY = (
    "ortools",
    "cvxpy",
    "pulp",
    "scipy",
    "numba",
    "sqlalchemy",
    "fastapi",
    "pydantic",
    "httpx2",
    "yaml",
    "numpy",
    "rich",
    "psycopg",
)


def unmeasured() -> dict[str, str]:
    """For programs whose modules are counted: under `make coverage` they would load its own, too."""
    return own_environment("COVERAGE_")


def loaded_by(*arguments: str) -> tuple[list[str], int]:
    """The heavy libraries that a command line has loaded when it ends, and the number of all modules."""
    script = (
        "import sys\n"
        "from app.cli.main import run\n"
        f"assert run({list(arguments)!r}) == 0\n"
        f"found = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "print(*found, len(sys.modules), file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=unmeasured(),
    )
    assert ended.returncode == 0
    *heavy, modules = ended.stderr.splitlines()[-1].split()
    return heavy, int(modules)


def test_help_loads_no_heavy_library_and_few_modules() -> None:
    # 166 modules: the interpreter's, typer's, and nine of this project. The rest is room for other versions of them.
    assert loaded_by("--help") == ([], pytest.approx(166, abs=14))


# Typer itself looks whether parameters are of pydantic's types.
LOADED = [
    (("simulate", "--help"), ["pydantic"], 320),
    (("plan", "--help"), ["pydantic", "numpy", "rich"], 580),
    (("get", "--help"), ["pydantic", "httpx2", "rich"], 440),
    (("serve", "--help"), ["pydantic"], 320),
    (("controller", "--help"), ["pydantic"], 320),
    (("capacity-law", "--help"), ["pydantic"], 320),
    (("predict", "--help"), ["pydantic", "numpy"], 460),
    (("fit", "--help"), ["pydantic", "numpy", "rich"], 500),
    (("trace", "--help"), ["pydantic", "httpx2", "numpy", "rich"], 580),
    (("version", "--short"), ["pydantic", "httpx2", "rich"], 430),
    (("config", "get-contexts"), ["pydantic", "httpx2", "rich"], 440),
    (("config", "show"), ["pydantic", "httpx2", "rich"], 520),
]


@pytest.mark.parametrize(
    ("arguments", "heavy", "most"),
    [
        *LOADED[:1],
        *(pytest.param(*row, marks=pytest.mark.thorough) for row in LOADED[1:]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_offline_commands_load_what_they_need(
    arguments: tuple[str, ...], heavy: list[str], most: int
) -> None:
    # Modules are counted, since times depend on what else the machine does: 500 take about half a second.
    loaded, modules = loaded_by(*arguments)
    assert loaded == heavy
    assert modules <= most


def complete(words: str) -> tuple[list[str], str]:
    """What Tab offers in bash after these words, and the heavy libraries that were loaded for it."""
    script = (
        "import sys\n"
        "from app.cli.main import run\n"
        "run([])\n"
        f"print(*[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    environment = {
        **unmeasured(),
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
        "_PLIMSOLL_COMPLETE": "complete_bash",
    }
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=environment,
    )
    # Typer itself reads parameters with pydantic where that is installed.
    return ended.stdout.split(), ended.stderr.replace("pydantic", "").strip()


def test_completion_offers_verbs_without_loading_them_and_kinds_and_options() -> None:
    assert complete("plimsoll ap") == (["apply", "approve"], "")
    assert complete("plimsoll --u")[0] == ["--url"]
    assert complete("plimsoll get no")[0] == ["nodes"]


def test_every_command_says_what_the_table_says_and_has_help_within_80_columns() -> (
    None
):
    for entry in ENTRIES:
        said = Commands(ENTRIES)[entry.name].help or ""
        assert said.splitlines()[0] == entry.help, entry.name
        if entry.name not in PASSED_ON:
            shown = cli(entry.name, "--help")
            assert shown.code == 0
            assert max(map(len, shown.out.splitlines())) <= 80, entry.name


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["appl"], "Did you mean 'apply'?"),
        (["get"], "Missing argument 'KIND'"),
        (["get", "servces"], "did you mean services?"),
        (["apply", "-f"], "requires an argument"),
        (["cost", "--by", "planet"], "planet"),
        (["approve", "soon"], "PLAN"),
        (["plan", "x", "--seed", "-1"], "--seed"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_is_wrong(
    arguments: list[str], words: str
) -> None:
    result = cli(*arguments)
    assert result.code == 2
    assert words in result.err
    assert result.out == ""


def test_the_document_of_the_commands_is_up_to_date() -> None:
    assert not document.is_stale(), "run `python -m tools.documents.cli`"
