"""Memory over the batch: the line, and that what was measured is never under-predicted."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.predict.data.fit import TooFewSamples
from solvers.predict.data.samples import Queries, Samples, make_samples
from solvers.predict.resources import memory
from tests.examples import examples
from tests.solvers.synthetic_samples import queries_at


def _at(batch: list[float]) -> Queries:
    return queries_at(
        batch=batch, sm_percent=[100] * len(batch), network="net", gpu_type="T4"
    )


def _measured(batch: list[float], memory_mib: list[float]) -> Samples:
    return make_samples(_at(batch), [1.0] * len(batch), memory_mib=memory_mib)


def test_a_line_is_found_again_beyond_the_samples() -> None:
    coefficients = memory.fit(_measured([1, 4, 16], [510, 540, 660]))
    # 500 MiB and 10 MiB per request.
    np.testing.assert_allclose(
        memory.predict(coefficients, _at([0.5, 2, 64])), [505, 520, 1140]
    )


def test_a_high_measurement_is_kept_at_its_batch_and_above() -> None:
    coefficients = memory.fit(_measured([1, 2, 4, 8, 16], [510, 900, 540, 580, 660]))
    np.testing.assert_allclose(
        memory.predict(coefficients, _at([1, 2, 8, 256])),
        [510, 900, 900, 3060],
        rtol=0.01,
    )


@settings(max_examples=examples(60))
@given(
    rows=st.lists(
        st.tuples(st.integers(1, 256), st.floats(1.0, 80_000.0)),
        min_size=2,
        max_size=16,
        unique_by=lambda row: row,
    ).filter(lambda rows: len({batch for batch, _ in rows}) > 1)
)
def test_nothing_measured_is_under_predicted_and_memory_never_falls_with_the_batch(
    rows: list[tuple[int, float]],
) -> None:
    samples = _measured([float(batch) for batch, _ in rows], [mib for _, mib in rows])
    coefficients = memory.fit(samples)
    assert np.all(memory.predict(coefficients, samples.at) >= samples.memory_mib)
    everywhere = memory.predict(
        coefficients, _at([float(batch) for batch in range(1, 400)])
    )
    assert np.all(everywhere > 0.0)
    assert np.all(np.diff(everywhere) >= 0.0)
    upper = memory.predict_upper(
        coefficients, _at([float(batch) for batch in range(1, 400)])
    )
    assert np.all(upper >= everywhere)


def test_memory_that_seems_to_fall_with_the_batch_is_taken_as_constant() -> None:
    coefficients = memory.fit(_measured([1, 2, 4], [600, 590, 580]))
    np.testing.assert_allclose(
        memory.predict(coefficients, _at([1, 64])), [600, 600], rtol=0.02
    )


def test_the_upper_estimate_is_seldom_too_low_where_measurements_scatter() -> None:
    rng = np.random.default_rng(0)
    too_low = 0
    for _ in range(400):
        batch = rng.integers(1, 64, 6).astype(np.float64)
        mib = (800.0 + 25.0 * batch) * np.exp(0.1 * rng.standard_normal(6))
        coefficients = memory.fit(_measured(batch[:5].tolist(), mib[:5].tolist()))
        too_low += int(mib[5] > memory.predict_upper(coefficients, _at([batch[5]]))[0])
    assert too_low < 0.1 * 400


def test_two_samples_get_the_margin_of_the_unknown_but_where_measured() -> None:
    coefficients = memory.fit(_measured([1, 2], [510, 520]))
    np.testing.assert_allclose(
        memory.predict_upper(coefficients, _at([2, 3])), [520, 1.25 * 530]
    )


def test_many_samples_are_fitted_without_comparing_all_of_them_in_pairs() -> None:
    rng = np.random.default_rng(0)
    batch = rng.integers(1, 33, 30_000).astype(np.float64)
    mib = 800.0 + 25.0 * batch + rng.normal(0.0, 5.0, len(batch))
    coefficients = memory.fit(_measured(batch.tolist(), mib.tolist()))
    np.testing.assert_allclose(
        memory.predict(coefficients, _at([64])), [2400], rtol=0.01
    )


def test_one_batch_is_too_few_and_the_message_says_so() -> None:
    with pytest.raises(
        TooFewSamples, match="two batches or more; 2 of 3 samples have it, at 1"
    ):
        memory.fit(_measured([4, 4, 8], [540, 541, np.nan]))
