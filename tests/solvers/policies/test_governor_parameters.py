"""Parameters of governors: their defaults are the governor's and the agents', and what is set is a tuning."""

from dataclasses import asdict

import msgspec

from agents.base.protocol import GovernorCommand
from solvers.governors.registry import GOVERNORS
from solvers.governors.types import GovernorTuning
from solvers.policies.governor_parameters import (
    GOVERNOR_PARAMETERS,
    PowerLatencyParameters,
)
from solvers.policies.registry import parameters_of, policies


def test_defaults_are_the_same_where_they_are_set_sent_and_used() -> None:
    command = GovernorCommand(name="dfs", clocks_mhz=(900.0,), power_limit_w=1.0)
    tuning = asdict(GovernorTuning())
    assert asdict(PowerLatencyParameters()) == tuning
    assert tuning.items() <= msgspec.structs.asdict(command).items()


def test_they_go_by_the_governors_name_which_is_no_policys() -> None:
    assert set(GOVERNOR_PARAMETERS) <= set(GOVERNORS) - set(policies())
    found = parameters_of("power_latency", {"largest_clock_step": 5})
    assert found == PowerLatencyParameters(largest_clock_step=5)
