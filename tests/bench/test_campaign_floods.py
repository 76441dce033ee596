"""A slice of each row of the campaign against real processes, and the parts of its floods and of its day."""

import asyncio
from random import Random

import msgspec
import pytest

from bench.campaign.day import day
from bench.campaign.day.growth import TableSize, unbounded
from bench.campaign.faults import fault, kill
from bench.campaign.floods import fuzz, greedy
from bench.campaign.floods.flood import FloodResult, is_allowed
from bench.campaign.floods.mutations import mutate
from bench.campaign.outcome import RowOptions

BODY = b'{"node": "n1", "gpus": [{"index": 0, "power_w": 12.5}]}'


@pytest.mark.parametrize(
    ("status", "retry_after", "allowed"),
    [
        (200, None, True),
        (422, None, True),
        (503, "5", True),
        (503, None, False),
        (500, "5", False),
        (504, "5", False),
        (None, None, False),
    ],
)
def test_of_server_errors_only_a_503_that_says_when_to_come_again_is_allowed(
    status: int | None, retry_after: str | None, allowed: bool
) -> None:
    assert is_allowed(status, retry_after) == allowed
    result = FloodResult()
    result.note(status, "GET /", retry_after)
    assert (result.sent, result.broken_count) == (1, int(not allowed))


def test_a_mutation_changes_a_body_and_is_the_same_for_the_same_seed() -> None:
    mutants = [mutate(BODY, Random(seed)) for seed in range(200)]
    assert mutants == [mutate(BODY, Random(seed)) for seed in range(200)]
    assert sum(mutant != BODY for mutant in mutants) > 180
    # Many must still be JSON, or only the parser is tested.
    assert sum(map(_is_json, mutants)) > 20
    assert mutate(b"", Random(1)) is not None


def _is_json(body: bytes) -> bool:
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def test_a_table_whose_rows_nobody_forgets_is_told_unless_it_is_kept_for_ever() -> None:
    def sizes(rows: int) -> dict[str, TableSize]:
        size = TableSize(rows=rows, size_bytes=100 * rows)
        return {"leak": size, "event": size, "observation": size}

    left = {**sizes(5000), "observation": TableSize(rows=1, size_bytes=100)}
    assert unbounded(sizes(0), sizes(5000), left, gpus=200) == (
        "leak grew by 5000 rows, of which 5000 are kept for ever",
    )


SLICES = {
    # An hour in ten seconds, as fast as a day in four minutes.
    "day": (day.run, RowOptions(seconds=10.0, hours=1.0)),
    "kill": (kill.run, RowOptions(seconds=6.0, kills=7, nodes=1)),
    # A controller that is cut off, and two controllers at once; the night makes all.
    "fault": (fault.run, RowOptions(seconds=10.0, seed=2)),
    "fuzz": (fuzz.run, RowOptions(seconds=4.0, calls=150)),
    "greedy": (greedy.run, RowOptions(seconds=6.0, nodes=1)),
}


@pytest.mark.integration
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "day" else pytest.mark.thorough)
        for name in SLICES
    ],
)
def test_a_slice_of_the_campaign_breaks_nothing(name: str) -> None:
    run, options = SLICES[name]
    outcome = asyncio.run(run(options))
    # Not `too_slow` or `not_done`: tests share their machine, and a slice is short.
    assert outcome.violations == ()
    assert outcome.figures
    kills = {
        each["victim"]: each["kills"] for each in outcome.figures if "victim" in each
    }
    assert all(count for victim, count in kills.items() if "skipped" not in str(victim))
    answered = [each.get("requests_answered") for each in outcome.figures]
    assert 0 not in answered or not kill._has_haproxy()
    results = {each["result"] for each in outcome.figures if "result" in each}
    assert not results or "passed" in results
