"""The capacity of a replica: the highest rate at which both SLOs are kept, found in a few passes."""

import pytest

from solvers.llm.calendar import Replica, draw_requests
from solvers.llm.capacity import (
    REQUESTS,
    capacity_rps,
    rough_capacity_rps,
    saturation_rps,
    shares_kept,
)
from solvers.llm.kv_cache import PLANNED_SHARE
from solvers.llm.lengths import length_table, named_lengths
from solvers.types.llm import MAX_LOAD, TokenSlo
from tests.solvers.llm.models import make_replica, make_table

LENGTHS = length_table(named_lengths("conversation"), longest=8192)
TABLE = make_table(sequence_ms=0.05, cached_token_ms=1e-4, pair_ms=1e-6)
REPLICA = make_replica(TABLE, budget=1024, seqs=64)


def slo_of(
    *, ttft_ms: float = 400.0, itl_ms: float = 60.0, percentile: float = 0.95
) -> TokenSlo:
    return TokenSlo(ttft_ms=ttft_ms, itl_ms=itl_ms, percentile=percentile)


def planned(replica: Replica) -> Replica:
    """The replica with as much of its cache as plans count on."""
    return Replica(
        table=replica.table,
        limits=replica.limits,
        kv_tokens=PLANNED_SHARE * replica.kv_tokens,
    )


@pytest.mark.parametrize(
    ("ttft_ms", "percentile"),
    [(150.0, 0.9), (250.0, 0.99)],
)
def test_the_slo_is_kept_at_the_capacity_and_not_two_per_cent_above(
    ttft_ms: float, percentile: float
) -> None:
    slo = slo_of(ttft_ms=ttft_ms, percentile=percentile)
    draw = draw_requests(LENGTHS, REQUESTS)

    found = capacity_rps(REPLICA, LENGTHS, slo)
    at = shares_kept(planned(REPLICA), draw, slo, found)
    above = shares_kept(planned(REPLICA), draw, slo, 1.02 * found)

    assert 0.0 < found < MAX_LOAD * saturation_rps(planned(REPLICA), LENGTHS)
    assert min(at.ttft, at.itl) >= percentile
    assert min(above.ttft, above.itl) < percentile


def test_a_loose_slo_leaves_the_ceiling_alone() -> None:
    found = capacity_rps(REPLICA, LENGTHS, slo_of(ttft_ms=60_000.0, itl_ms=5_000.0))

    highest = MAX_LOAD * saturation_rps(planned(REPLICA), LENGTHS)
    assert found == pytest.approx(highest)


def test_where_one_request_alone_is_late_there_is_no_capacity() -> None:
    assert capacity_rps(REPLICA, LENGTHS, slo_of(itl_ms=1.0)) == 0.0


def test_few_requests_tell_it_roughly() -> None:
    slo = slo_of()

    rough = rough_capacity_rps(REPLICA, LENGTHS, slo)

    assert rough == pytest.approx(capacity_rps(REPLICA, LENGTHS, slo), rel=0.1)
