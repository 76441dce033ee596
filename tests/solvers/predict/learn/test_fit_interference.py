"""Co-located samples to interference fits, and what they say of networks that were never alone."""

import numpy as np
import pytest

from solvers.predict.data.samples import Samples
from solvers.predict.interference.layer_counts import NO_LAYERS
from solvers.predict.learn.fit_interference import (
    Colocated,
    fit_interference,
    lend_alone,
)
from tests.solvers.synthetic_samples import (
    beside,
    grid_samples,
    joined,
    known_latency_ms,
)

UNKNOWN = float("nan")


def neighbours() -> Samples:
    """a alone and next to two neighbours, one mild and one harsh; c only next to others."""
    return joined(
        grid_samples(("a",)),
        beside("a", "mild", factor=1.02),
        beside("a", "harsh", factor=1.4),
        beside("c", "mild", factor=1.02),
        beside("c", "harsh", factor=1.4),
    )


def alone_ms(
    samples: Samples, *known: str
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """(N,) the truth for known networks."""
    truth = known_latency_ms(samples.at.batch, samples.at.sm_percent)
    return np.asarray(np.where(np.isin(samples.at.network, known), truth, UNKNOWN))


def test_a_network_never_alone_lends_its_samples_as_if_alone() -> None:
    samples = neighbours()
    lent = lend_alone(samples, alone_ms(samples, "a"))
    assert lent.at.neighbours == ((),) * len(lent)
    is_c = np.array(lent.at.network) == "c"
    assert (np.count_nonzero(~is_c), np.count_nonzero(is_c)) == (40, 80)
    # What was measured alone stays as it was; the rest is divided by a factor that other networks taught.
    assert lent.latency_ms[~is_c].tobytes() == grid_samples(("a",)).latency_ms.tobytes()
    truth = known_latency_ms(lent.at.batch[is_c], lent.at.sm_percent[is_c])
    assert lent.latency_ms[is_c] == pytest.approx(truth, rel=0.03)


def colocated(*known: str) -> Colocated:
    samples = neighbours()
    return Colocated(
        samples=samples, alone_ms=alone_ms(samples, *known), layers=NO_LAYERS
    )


def test_strangers_are_judged_by_leaving_each_neighbour_out() -> None:
    known, strangers = fit_interference(colocated("a", "c"), seed=0, source="s.csv")
    assert (known.quantity, strangers.quantity) == (
        "interference",
        "stranger_interference",
    )
    assert (known.group.network, known.group.gpu_type, known.source) == (
        "",
        "V100-16GB",
        "s.csv",
    )
    assert known.quality.cross_validated_error < 0.02
    # Who has met only one of them takes the other for the same: 1.02 for 1.4, or the reverse.
    assert 0.2 < strangers.quality.cross_validated_error < 0.4
    assert (
        strangers.quality.ratio_quantiles[-1] > known.quality.ratio_quantiles[-1] + 0.1
    )


def test_rows_whose_latency_alone_is_not_known_do_not_count_as_samples() -> None:
    known, _ = fit_interference(colocated("a"), seed=0, source="")
    assert known.quality.sample_count == 80


def test_without_neighbours_or_latencies_alone_there_is_nothing_to_fit() -> None:
    assert fit_interference(colocated(), seed=0, source="") == ()
    alone = grid_samples()
    nobody = Colocated(samples=alone, alone_ms=alone_ms(alone, "a"), layers=NO_LAYERS)
    assert fit_interference(nobody, seed=0, source="") == ()
