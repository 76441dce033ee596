"""The registry of policies: those of the core, and those of whichever papers are there."""

import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from solvers import papers
from solvers.baselines.k8s_hpa import make_plan
from solvers.policies.registry import (
    dispatches_jobs,
    needs_actor,
    policies,
    policy,
    spec_of,
)
from solvers.types.errors import UnknownPolicy

CORE = {
    "gpulets",
    "gslice",
    "hetsev_greedy",
    "igniter",
    "joint",
    "k8s_hpa",
    "muxflow",
}


def of_papers() -> list[str]:
    """What the folders of papers state."""
    return [
        spec.name
        for found in sorted(Path(papers.__path__[0]).glob("*/spec.py"))
        for spec in import_module(f"solvers.papers.{found.parent.name}.spec").POLICIES
    ]


def test_policies_are_those_of_the_core_and_of_the_papers_by_name() -> None:
    assert policies() == tuple(sorted([*CORE, *of_papers()]))
    assert policy("k8s_hpa").make_plan is make_plan


@pytest.mark.parametrize("name", policies())
def test_every_module_that_a_policy_names_is_there(name: str) -> None:
    spec = spec_of(name)
    named = (spec.module, spec.fill, spec.dispatches_jobs, spec.trainer)
    assert [module for module in named if module and find_spec(module) is None] == []


def test_unknown_policy_names_those_that_exist() -> None:
    with pytest.raises(
        UnknownPolicy,
        match=r"'hetsec'; there are .*gpulets, .*joint, ",
    ):
        policy("hetsec")


def test_an_unknown_policy_asks_for_nothing() -> None:
    assert not needs_actor("gone") and not dispatches_jobs("gone")


def test_to_list_the_policies_loads_no_solver() -> None:
    # Every help text and every completion lists them.
    listed = "from solvers.policies.registry import policies; policies()"
    loaded = "import sys; print({'numpy', 'scipy', 'ortools'} & set(sys.modules))"
    ran = subprocess.run(
        [sys.executable, "-c", f"{listed}\n{loaded}"],
        capture_output=True,
        check=True,
        text=True,
    )
    assert ran.stdout == "set()\n"
