"""The registry of policies."""

import pytest

from solvers.baselines.k8s_hpa import make_plan
from solvers.policies.registry import policies, policy
from solvers.types.errors import UnknownPolicy


def test_policies_are_listed_and_found_by_name() -> None:
    assert policies() == (
        "gpulets",
        "gpulets_bda",
        "gslice",
        "hetsev",
        "hetsev_greedy",
        "igniter",
        "inss",
        "inss_1e",
        "inss_ni",
        "joint",
        "k8s_hpa",
        "morak",
        "mudi",
        "muxflow",
        "oltunes",
    )
    assert policy("k8s_hpa").make_plan is make_plan


def test_unknown_policy_names_those_that_exist() -> None:
    with pytest.raises(
        UnknownPolicy,
        match=r"'hetsec'; there are gpulets, .*gslice, hetsev, .*, joint, k8s_hpa, morak",
    ):
        policy("hetsec")
