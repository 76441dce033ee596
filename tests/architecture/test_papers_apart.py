"""Papers stand apart: without any one of them the rest imports, lists its policies and makes a plan.

Each tree is one of links to this one, with a folder less. One process goes through all of them and imports ours again
for each: what takes long, to load the solvers' libraries, it does once.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from solvers.policies.registry import policies

ROOT = Path(__file__).parents[2]
PAPERS = sorted(
    found.parent.name for found in (ROOT / "solvers" / "papers").glob("*/__init__.py")
)

FROM_EACH_TREE = """
import json
import sys
import traceback
from importlib import import_module, invalidate_caches
from pathlib import Path
from pkgutil import walk_packages

OURS = ("app", "agents", "solvers")
OF_THE_APP = ("app.loop.tick", "app.dispatch.dispatcher", "app.cli.main")
OPTIONAL = {"torch"}


def fail(name):
    raise ImportError(name)


def look(root):
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    sys.path[0] = str(root)
    invalidate_caches()
    solvers = import_module("solvers")
    assert Path(solvers.__file__).is_relative_to(root), solvers.__file__
    for module in walk_packages(solvers.__path__, "solvers.", onerror=fail):
        try:
            import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name not in OPTIONAL:
                raise
    for name in OF_THE_APP:
        import_module(name)
    return {"papers": loaded(), **answers()}


def loaded():
    names = (name.split(".") for name in sys.modules)
    return sorted({name[2] for name in names if name[:2] == ["solvers", "papers"] and name[2:]})


def answers():
    from solvers.policies.registry import fill_of, policies, policy
    from solvers.policies.warm_up import tiny_problem
    from solvers.types.outcome import Budget
    from solvers.types.state import Observed

    budget, now = Budget(seconds=20.0, work=0.1), Observed(at_s=0.0)
    plan, _, _ = policy("joint").make_plan(tiny_problem(), now, None, budget)
    fills = {name: fill_of(name) for name in policies()}
    return {"policies": sorted(fills), "gpus": len(plan.gpus), "unserved": len(plan.unserved)}


found = {}
sys.path.insert(0, "")
for root in sorted(Path(sys.argv[1]).resolve().iterdir()):
    try:
        found[root.name] = look(root)
    except Exception:
        found[root.name] = {"error": traceback.format_exc()}
print(json.dumps(found))
"""


def link_all_but(left_out: str, source: Path, target: Path) -> None:
    """Make `target` a folder of links to what is in `source`."""
    target.mkdir()
    for each in source.iterdir():
        if each.name not in (left_out, "__pycache__"):
            (target / each.name).symlink_to(each)


def tree_without(paper: str, root: Path) -> None:
    """The program in `root`, without that paper."""
    for package in ("app", "agents"):
        (root / package).symlink_to(ROOT / package)
    link_all_but("papers", ROOT / "solvers", root / "solvers")
    link_all_but(paper, ROOT / "solvers" / "papers", root / "solvers" / "papers")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """What the program is without each of the papers, by paper."""
    trees = tmp_path_factory.mktemp("trees")
    for paper in PAPERS:
        (trees / paper).mkdir()
        tree_without(paper, trees / paper)
    run = subprocess.run(
        [sys.executable, "-c", FROM_EACH_TREE, str(trees)],
        cwd=trees,
        env={name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        # Where no compiled kernels are kept yet, making the plan compiles them.
        timeout=400,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, dict[str, object]] = json.loads(run.stdout)
    return found


# `make test` has the rule that makes it true, below: no file outside of the papers imports one.
@pytest.mark.thorough
@pytest.mark.parametrize("paper", PAPERS)
def test_without_a_paper_the_rest_works(
    paper: str, seen: dict[str, dict[str, object]]
) -> None:
    own = {spec.name for spec in import_module(f"solvers.papers.{paper}.spec").POLICIES}
    without = seen[paper]
    assert "error" not in without, without["error"]
    assert without["papers"] == [name for name in PAPERS if name != paper]
    assert own and without["policies"] == [
        name for name in policies() if name not in own
    ]
    assert without["gpus"] and not without["unserved"]


def sources() -> Iterator[Path]:
    """Python files of the program and its tools, outside the papers."""
    for folder in ("app", "agents", "solvers", "tools", "migrations"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if (ROOT / "solvers" / "papers") not in path.parents:
                yield path


def test_no_file_outside_the_papers_imports_one() -> None:
    named = re.compile(rf"\bsolvers\.papers\.(?:{'|'.join(PAPERS)})\b")
    found = [
        f"{path.relative_to(ROOT)}: {hit.group()}"
        for path in sources()
        for hit in named.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []
