"""What is imported is declared, what is declared is pinned, and a node needs the small set only."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.waiting import PATIENCE_S
from tools.sources import PACKAGES, nodes_of, python_files

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
PART_OF_A_DECLARED_ONE = {
    "starlette": "fastapi",
    "pydantic-core": "pydantic",
    "opentelemetry-api": "opentelemetry-sdk",
}
"""Libraries that a declared one hands out as its own interface."""

IMPORT_WITHOUT_THE_REST = """
import sys

class Finder:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        is_blocked = any(name == each or name.startswith(each + ".") for each in blocked)
        return None if is_blocked else self.finder.find_spec(name, path, target)

blocked = set(sys.argv[1].split(","))
sys.meta_path[:] = [Finder(finder) for finder in sys.meta_path]
for module in sys.argv[2].split(","):
    __import__(module)
print("imported")
"""


def declared(*extras: str) -> list[Requirement]:
    """The direct dependencies: the base set and those of some extras."""
    lines = [
        *PROJECT["dependencies"],
        *(line for extra in extras for line in PROJECT["optional-dependencies"][extra]),
    ]
    return [Requirement(line) for line in lines]


def names(requirements: Iterable[Requirement]) -> set[str]:
    return {canonicalize_name(requirement.name) for requirement in requirements}


@cache
def import_graph() -> grimp.ImportGraph:
    return grimp.build_graph(
        "agents", "app", "solvers", include_external_packages=True, cache_dir=None
    )


@cache
def distributions() -> dict[str, list[str]]:
    """Distributions by the top-level module that they provide: of those that share one the shortest name, first."""
    return {
        module: sorted(map(canonicalize_name, found), key=len)
        for module, found in metadata.packages_distributions().items()
    }


NEED_AN_EXTRA = {
    "solvers.papers.inss.training.actor_critic": "rl",
    "agents.serving.engines.torch_engine": "rl",
    "agents.trainer.torch_trainer": "rl",
    "agents.serving.engines.onnx_engine": "onnx",
    "app.serve.tracing": "otel",
    "app.api.reports.export": "parquet",
}
"""Modules that work with that extra only."""


def libraries(modules: Iterable[str]) -> set[str]:
    """Distributions that some modules of ours import directly; a module that no distribution provides by its name."""
    graph = import_graph()
    imported = {
        found
        for module in modules
        for found in graph.find_modules_directly_imported_by(module)
    }
    outside = {
        found
        for found in imported
        if found.partition(".")[0] not in {"agents", "app", "solvers"}
    }
    provided = {
        distributions().get(found, [found])[0]
        for found in outside - set(sys.stdlib_module_names)
    }
    return {PART_OF_A_DECLARED_ONE.get(name, name) for name in provided}


def modules_of(package: str) -> set[str]:
    return {package, *import_graph().find_descendants(package)}


def node_modules() -> list[str]:
    """What runs on a node with real GPUs: the agent without the simulation, and the governors."""
    return sorted(
        (modules_of("agents") - modules_of("agents.sim"))
        | modules_of("solvers.governors")
    )


def base_closure() -> set[str]:
    """The base dependencies and all that they need."""
    found: set[str] = set()
    waiting = declared()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in found or (
            requirement.marker is not None
            and not requirement.marker.evaluate({"extra": ""})
        ):
            continue
        found.add(name)
        waiting += [Requirement(line) for line in metadata.requires(name) or []]
    return found


def test_a_node_declares_all_that_its_agent_imports() -> None:
    assert libraries(set(node_modules()) - NEED_AN_EXTRA.keys()) <= names(declared())


def test_the_agent_alone_is_what_a_node_runs() -> None:
    agent = tomllib.loads((ROOT / "deploy/agent/pyproject.toml").read_text())
    same = ("version", "requires-python", "license", "dependencies")
    assert {key: agent["project"][key] for key in same} == {
        key: PROJECT[key] for key in same
    }
    included = agent["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert all(source == f"../../{target}" for source, target in included.items())
    parts = {path.removesuffix(".py").replace("/", ".") for path in included.values()}
    assert parts == {
        "agents.__init__",
        *(import_graph().find_children("agents") - {"agents.sim"}),
        "solvers.__init__",
        "solvers.governors",
    }


def test_the_server_declares_all_that_it_imports() -> None:
    everything = modules_of("app") | modules_of("solvers") | modules_of("agents")
    assert libraries(everything - NEED_AN_EXTRA.keys()) <= names(declared("server"))


def test_the_tools_import_only_what_a_developer_has() -> None:
    outside = set()
    for node in (node for path in python_files("tools") for node in nodes_of(path)):
        if isinstance(node, ast.ImportFrom):
            outside.add(str(node.module).partition(".")[0])
        elif isinstance(node, ast.Import):
            outside |= {each.name.partition(".")[0] for each in node.names}
    outside -= sys.stdlib_module_names | {*PACKAGES, "tools"}
    provided = {distributions().get(name, [name])[0] for name in outside}
    needed = {PART_OF_A_DECLARED_ONE.get(name, name) for name in provided}
    assert needed <= names(declared("server", "dev"))
    # And they measure what is installed.
    wheel = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(wheel["packages"]) == set(PACKAGES)


@pytest.mark.parametrize(("module", "extra"), NEED_AN_EXTRA.items())
def test_what_needs_an_extra_declares_all_that_it_imports(
    module: str, extra: str
) -> None:
    if module.startswith("solvers.papers.") and module not in import_graph().modules:
        pytest.skip("the paper has been taken away")
    assert libraries([module]) <= names(declared("server")) | names(declared(extra))


def test_an_agent_starts_with_the_base_dependencies_alone() -> None:
    small = base_closure()
    blocked = {
        module
        for module, owners in distributions().items()
        if not small.intersection(owners)
    }
    others = import_graph().find_children("solvers") - {"solvers.governors"}
    blocked = (blocked | {"app"} | others) - {"agents", "solvers"}
    assert {"numpy", "fastapi", "sqlalchemy", "pydantic", "ortools", "numba"} <= blocked
    import_without(blocked, node_modules())


def test_the_command_line_of_the_agent_needs_nothing_but_python() -> None:
    import_without(set(distributions()) - {"agents"}, ["agents.main"])


def import_without(blocked: set[str], modules: list[str]) -> None:
    names = (",".join(sorted(blocked)), ",".join(modules))
    run = subprocess.run(
        [sys.executable, "-c", IMPORT_WITHOUT_THE_REST, *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (run.returncode, run.stdout.strip()) == (0, "imported"), run.stderr


def tracked_texts() -> dict[str, str]:
    """Every text file that git tracks; without git there is nothing to say."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    texts = {}
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.is_file() and b"\0" not in (content := path.read_bytes()):
            texts[name] = content.decode(errors="replace")
    return texts


# Put together here, so that this file does not find itself.
UNWANTED = {
    "a path of one machine": r"(?<![\w.])/(?:root|work|home/[a-z]+)/" + r"\w",
    "a package registry": r"(?i)\b(?:py"
    + r"pi|npm"
    + r"js|crates|python"
    + r"hosted)\."
    + r"(?:org|io|com)\b",
    "an index address": r"(?i)--(?:extra-)?index-" + r"url\b",
    "somebody's key": r"-----BEGIN [A-Z ]*PRIVATE " + r"KEY",
}


def test_no_tracked_file_mentions_what_is_not_for_others() -> None:
    found = [
        f"{what} in {name}: {match[0]}"
        for name, text in tracked_texts().items()
        for what, pattern in UNWANTED.items()
        for match in re.finditer(pattern, text)
    ]
    assert found == []
