"""The miss probability against closed forms, a brute-force chain and a discrete-event simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.bulk_queue_simulation import simulate_miss_probability
from solvers.laws.bulk_queue import MAX_WAITING, miss_probability, refused_share

BATCHES = st.integers(min_value=1, max_value=128)
UTILISATIONS = st.floats(min_value=1e-6, max_value=0.99)
RATIOS = st.floats(min_value=1.0, max_value=50.0)
ROUNDING = 1e-10

SIMULATED_RATIOS = (1.2, 1.6, 1.9, 2.0, 2.4, 3.0, 5.0, 10.0)


# There are enough requests that three other seeds, too, stay below 0.0018 everywhere.
@pytest.mark.parametrize(
    ("batch", "utilisation", "requests"),
    [
        (1, 0.3, 2_000_000),
        pytest.param(1, 0.9, 20_000_000, marks=pytest.mark.thorough),
        (3, 0.85, 8_000_000),
        pytest.param(12, 0.9, 15_000_000, marks=pytest.mark.thorough),
        (16, 0.4, 2_000_000),
        pytest.param(48, 0.95, 40_000_000, marks=pytest.mark.thorough),
        (64, 0.85, 5_000_000),
        *(
            pytest.param(*row, marks=pytest.mark.thorough)
            for row in (
                (1, 0.05, 2_000_000),
                (1, 0.7, 5_000_000),
                (2, 0.5, 2_000_000),
                (8, 0.6, 2_000_000),
                (32, 0.75, 4_000_000),
            )
        ),
    ],
)
def test_a_discrete_event_simulation_misses_as_often(
    batch: int, utilisation: float, requests: int
) -> None:
    simulated = simulate_miss_probability(
        batch,
        utilisation=utilisation,
        slo_ratios=SIMULATED_RATIOS,
        requests=requests,
        seed=1,
    )
    predicted = miss_probability(
        batch, utilisation=utilisation, slo_ratio=SIMULATED_RATIOS
    )
    np.testing.assert_allclose(predicted, simulated, rtol=0.0, atol=0.003)


@pytest.mark.parametrize("utilisation", [0.01, 0.2, 0.6, 0.9, 0.99, 0.9999])
@pytest.mark.parametrize("wait", [0.0, 0.4, 1.0, 1.7, 3.0, 4.25])
def test_batch_one_follows_crommelins_formula(utilisation: float, wait: float) -> None:
    # M/D/1: P(W <= t) = (1 - ρ) Σ_{k=0..floor(t)} (ρ(k - t))^k / k! · exp(-ρ(k - t)); P(W = 0) = 1 - ρ.
    terms = (
        (utilisation * (k - wait)) ** k
        / math.factorial(k)
        * math.exp(-utilisation * (k - wait))
        for k in range(math.floor(wait) + 1)
    )
    expected = 1.0 - (1.0 - utilisation) * sum(terms)
    actual = miss_probability(1, utilisation=utilisation, slo_ratio=1.0 + wait)
    assert actual == pytest.approx(expected, abs=ROUNDING)


def _brute_force_miss_probability(
    batch: int, utilisation: float, slo_ratio: float
) -> float:
    """The chain of requests left behind, cut off at 250, by linear algebra; then an average over arrival times."""
    from scipy.stats import poisson  # It takes long to be imported.

    states, arrivals = 250, utilisation * batch
    transition = np.zeros((states, states))
    arrived = np.arange(states)
    for waiting in range(states):
        after = np.clip(waiting + arrived - batch, 0, states - 1)
        np.add.at(transition[waiting], after, poisson.pmf(arrived, arrivals))
    balance = np.vstack([transition.T - np.eye(states), np.ones(states)])
    left_behind = np.linalg.lstsq(balance, np.append(np.zeros(states), 1.0))[0]

    # Where an arrival's wait passes the limit, the integrand jumps: Gauss-Legendre on either side of that offset.
    allowed_wait = slo_ratio - 1.0
    jump = 1.0 - (allowed_wait - math.floor(allowed_wait))
    nodes, weights = np.polynomial.legendre.leggauss(40)
    late = 0.0
    for start, end in ((0.0, jump), (jump, 1.0)):
        for node, weight in zip(nodes, weights, strict=True):
            offset = start + (end - start) * (node + 1.0) / 2.0
            # Late behind at least this many: (1 - offset) + floor(ahead / batch) > allowed_wait.
            ahead = batch * (math.floor(allowed_wait - (1.0 - offset)) + 1)
            behind_more = poisson.sf(ahead - 1 - np.arange(states), arrivals * offset)
            late += (
                weight
                * (end - start)
                / 2.0
                * arrivals
                * float(left_behind @ behind_more)
            )
    idle = left_behind[0] * math.exp(-arrivals)
    return late / (arrivals + idle)


@pytest.mark.parametrize(
    ("batch", "utilisation", "slo_ratio"),
    [(2, 0.6, 1.3), (5, 0.8, 2.0), (7, 0.3, 1.9), (16, 0.85, 2.25), (3, 0.9, 4.5)],
)
def test_a_chain_solved_by_brute_force_agrees(
    batch: int, utilisation: float, slo_ratio: float
) -> None:
    expected = _brute_force_miss_probability(batch, utilisation, slo_ratio)
    assert miss_probability(
        batch, utilisation=utilisation, slo_ratio=slo_ratio
    ) == pytest.approx(expected, abs=1e-9)


@given(batch=BATCHES, utilisation=UTILISATIONS, ratios=st.tuples(RATIOS, RATIOS))
def test_a_longer_slo_is_missed_less_often(
    batch: int, utilisation: float, ratios: tuple[float, float]
) -> None:
    tight, loose = miss_probability(
        batch, utilisation=utilisation, slo_ratio=sorted(ratios)
    )
    assert 0.0 <= loose <= tight + ROUNDING
    assert tight <= 1.0


def test_an_slo_below_the_execution_time_is_always_missed() -> None:
    assert miss_probability(
        8, utilisation=0.1, slo_ratio=[0.0, 0.5, 0.999]
    ).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("batch", "utilisation", "slo_ratio", "message"),
    [
        (0, 0.5, 2.0, "batch 0"),
        (1, 0.0, 2.0, "utilisation"),
        (1, 1.0, 2.0, "utilisation"),
        (1, 0.99995, 2.0, "utilisation"),
        (1, math.nan, 2.0, "utilisation"),
        (1, 0.5, math.nan, "slo_ratio"),
        (1, 0.5, math.inf, "slo_ratio"),
    ],
)
def test_arguments_out_of_range_are_refused(
    batch: int, utilisation: float, slo_ratio: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        miss_probability(batch, utilisation=utilisation, slo_ratio=slo_ratio)


def test_a_queue_that_refuses_is_erlangs_where_nobody_may_wait() -> None:
    # Ratio 1: a request that comes during an execution is refused; a request in 1 + a is served.
    for load in (0.1, 1.0, 3.0):
        share = refused_share(1, utilisation=load, slo_ratio=1.0)
        assert share == pytest.approx(load / (1.0 + load))
    assert refused_share(4, utilisation=0.5, slo_ratio=0.9) == 1.0


def test_a_queue_too_long_for_a_chain_is_a_fluid() -> None:
    assert refused_share(2 * MAX_WAITING, utilisation=0.9, slo_ratio=3.0) == 0.0
    assert refused_share(2 * MAX_WAITING, utilisation=2.0, slo_ratio=3.0) == 0.5
    # Where only the last half of an execution takes requests, as many as a batch, half of them is refused at any load.
    half = refused_share(5 * MAX_WAITING, utilisation=0.5, slo_ratio=1.5)
    assert half == pytest.approx(0.5, abs=0.001)
    # A chain of nearly that length says the same.
    assert refused_share(512, utilisation=2.0, slo_ratio=4.5) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("batch", "utilisation", "slo_ratio"),
    [(0, 0.5, 2.0), (1, 0.0, 2.0), (1, 0.5, math.inf), (1, math.nan, 2.0)],
)
def test_a_share_of_what_is_no_queue_is_refused(
    batch: int, utilisation: float, slo_ratio: float
) -> None:
    with pytest.raises(ValueError):
        refused_share(batch, utilisation=utilisation, slo_ratio=slo_ratio)
