"""The miss probability of a greedily batching server, from the stationary distribution of its bulk queue; and what is
refused where it takes only what will be in time, so that the queue is finite at any load.

Requests arrive as a Poisson stream; one server runs batches, each in the same time (the time unit here), partial
ones too. A free server takes min(waiting, b) requests at once; an idle one starts with the next arrival. Symbols:

    b     batch limit                           ρ  utilisation: arrivals per execution time over b
    a     = ρ·b, arrivals per execution time    r  SLO over execution time, r = 1 + k + f, k whole, 0 <= f < 1
    Q     requests left waiting at a start      A(u)  arrivals in a time u, Poisson with mean a·u

1. *Chain.* Between two starts lies one execution, so Q' = max(Q + A(1) - b, 0), a random walk held at 0. Its generating
   function is a Wiener-Hopf factor: E z^Q = exp(C(z) - C(1)), C(z) = Σ_{j>=1} c_j z^j, with c_j the Laurent
   coefficients of -log(1 - φ(z)), φ(z) = exp(a(z - 1)) / z^b, in 1 < |z| < z0, z0 > 1 the real root of φ = 1.
2. *Idle.* After a start the server falls idle with probability p = P(Q + A(1) = 0) = exp(-C(1) - a). So a start
   comes with a + p arrivals on average, p of which find the server idle and do not wait.
3. *Wait.* An arrival at offset s of an execution finds N = Q + A(s) waiting and waits 1 - s + floor(N / b); it is
   late when that exceeds k + f. Sum over the arrivals of an execution and use that Q' is distributed as Q:

       P(miss) = E min(max(Q + A(1 - f) - k·b, 0), b) / (a + p).

4. *Numbers.* With Y = Q + A(u), E max(Y - m, 0) = Σ_{j>=m} P(Y > j) is the mean over a circle |z| = R, 1 < R < z0, of
   E z^Y · z^(1 - m) / (z - 1)². N equally spaced points leave an error of the order R^-N. For m >= b the terms are
   of the order of E R^Q, so nothing cancels; m = 0 is led back to m = b by E Q = E max(Q + A(1) - b, 0).

Sources: the requests present at the end of an execution form the chain of the queue M/D/b (Crommelin 1932, "Delay
probability formulae when the holding times are constant"); the factor is Spitzer's identity (1956). Ours are the
form of step 3 and its evaluation by FFT instead of by the roots of φ = 1, which stays exact for any b.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

Reals = npt.NDArray[np.float64]
Complexes = npt.NDArray[np.complex128]
Indices = npt.NDArray[np.intp]

MAX_WAITING = 1024
"""Requests that may wait in an execution; longer queues are fluids: below utilisation 1 they lose none."""
MAX_LOAD = 0.9999  # Half a million points; at 1 they would be infinitely many.
_DIGITS = 25.0  # -log of the error that the finite circle may leave: exp(-25) = 1e-11
# At low ρ z0 is huge; |z| = 2 converges in a hundred points already.
_MAX_LOG_RADIUS = float(np.log(2.0))


def miss_probability(
    batch: int, *, utilisation: npt.ArrayLike, slo_ratio: npt.ArrayLike
) -> Reals:
    """P(waiting + execution > slo_ratio executions) of a request, in the long run, element by element.

    `utilisation` and `slo_ratio` broadcast; 0 < utilisation <= 0.9999. The absolute error stays below 1e-10. Time and
    memory grow as 1 / (1 - utilisation), whatever the batch: 0.1 ms and 30 kB per element at 0.9. Raises ValueError
    for arguments out of range.
    """
    load, ratio = np.broadcast_arrays(
        np.asarray(utilisation, float), np.asarray(slo_ratio, float)
    )
    _refuse_out_of_range(batch, load, ratio)

    # The coefficients c_j are wanted up to N/2 and alias with those of j - N, hence twice the digits.
    points = 2 ** np.ceil(np.log2(2.0 * _DIGITS / _log_radius(load))).astype(int)

    # Where ratio < 1 the execution alone takes longer than the SLO, so the probability stays 1.
    result = np.ones(load.shape)

    # Pairs with equally many points are solved together: one array of transforms holds only circles of one length.
    for count in np.unique(points):
        chosen = (points == count) & (ratio >= 1.0)
        if chosen.any():
            result[chosen] = _miss_on_circle(
                batch, load[chosen], ratio[chosen], int(count)
            )
    return result


def refused_share(batch: int, *, utilisation: float, slo_ratio: float) -> float:
    """The share of requests that such a server refuses, in the long run, where it takes only what will be in time.

    utilisation: above 0, also far above 1. Takes up to 0.3 s. Raises ValueError for arguments out of range.

    An arrival at offset s of an execution is taken while fewer than k·b requests wait, from s = 1 - f on while fewer
    than (k + 1)·b do. So the chain of Q is finite: the execution's two parts add their arrivals, cut at these lengths,
    and the next start takes a batch. What is cut off, over all arrivals, a + p at each start, is refused.
    """
    if not 0.0 < utilisation < math.inf:
        raise ValueError(f"utilisation {utilisation:g} must be above 0 and finite")
    _refuse_out_of_range(batch, np.array(0.5), np.array(slo_ratio))
    if slo_ratio < 1.0:
        return 1.0
    full, rest = divmod(slo_ratio - 1.0, 1.0)
    short = int(full) * batch
    if short > MAX_WAITING:
        return max(0.0, 1.0 - 1.0 / utilisation)
    return _refused_of_chain(batch, utilisation * batch, short, rest)


def _refused_of_chain(batch: int, arrivals: float, short: int, rest: float) -> float:
    """The share, where `short` may wait at first in an execution, and a batch more in the last `rest` of it."""
    early, lost_early = _cut(short, short, arrivals * (1.0 - rest))
    late, lost_late = _cut(short, short + batch, arrivals * rest)
    waiting = early @ late
    starts = _stationary(_taken(waiting, batch))
    refused = starts @ (lost_early + early @ lost_late)
    share = float(refused / (arrivals + starts @ waiting[:, 0]))
    # Rounding may leave -1e-17.
    return min(1.0, max(0.0, share))


def _taken(waiting: Reals, batch: int) -> Reals:
    """(n, n) chances from start to start, by those of what waits at the end of an execution, of which a batch goes."""
    return np.hstack(
        [waiting[:, : batch + 1].sum(axis=1)[:, None], waiting[:, batch + 1 :]]
    )


def _cut(states: int, longest: int, arrivals: float) -> tuple[Reals, Reals]:
    """(states + 1, longest + 1) chances from lengths to lengths, and (states + 1,) the mean of what is cut off."""
    number = scipy.stats.poisson(arrivals)
    more = np.arange(longest + 1) - np.arange(states + 1)[:, None]
    room = more[:, -1]
    # E max(A - m, 0) = E A · P(A >= m) - m · P(A > m), of a Poisson number A.
    lost = arrivals * number.sf(room - 1) - room * number.sf(room)
    chances = number.pmf(more)
    chances[:, -1] = number.sf(room - 1)
    return chances, np.maximum(lost, 0.0)


def _stationary(step: Reals) -> Reals:
    """The distribution that a chain keeps."""
    equations = step.T - np.eye(len(step))
    # One balance equation follows from the others; the chances sum to 1 in its place.
    equations[-1] = 1.0
    return np.asarray(np.linalg.solve(equations, np.eye(len(step))[-1]))


def _refuse_out_of_range(batch: int, load: Reals, ratio: Reals) -> None:
    if batch < 1:
        raise ValueError(f"batch {batch} must be at least 1")
    if not np.all((load > 0.0) & (load <= MAX_LOAD)):
        raise ValueError(
            f"utilisation must be above 0 and at most {MAX_LOAD}: at 1 no stationary queue exists"
        )
    if not np.all(np.isfinite(ratio)):
        raise ValueError("slo_ratio must be finite")


def _log_radius(load: Reals) -> Reals:
    """log R, half of log z0; from b·log z0 = a(z0 - 1), z0 = -W(-ρ exp(-ρ)) / ρ with Lambert's lower branch W."""
    outer_root = -scipy.special.lambertw(-load * np.exp(-load), -1).real / load
    return np.minimum(np.log(outer_root) / 2.0, _MAX_LOG_RADIUS)


def _miss_on_circle(batch: int, load: Reals, ratio: Reals, count: int) -> Reals:
    """P(miss), (n,), of the pairs `load` and `ratio` (n,); each distinct load is solved once."""
    loads, queue_of_pair = np.unique(load, return_inverse=True)
    queues = _solve_queues(batch, loads, count)
    arrivals_per_start = queues.arrivals + queues.idle_probability
    late = _late_per_start(queues, queue_of_pair, ratio)
    # Rounding of the mean over the circle may leave a share of -1e-12 or 1 + 1e-12.
    return np.clip(late / arrivals_per_start[queue_of_pair], 0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Queues:
    """The stationary queues of n loads at one batch limit; complex arrays are (n, N/2 + 1): half a circle."""

    batch: int
    arrivals: Reals
    """(n,): the symbol a."""
    idle_probability: Reals
    """(n,): the symbol p."""
    log_z: Complexes
    waiting: Complexes
    """E z^Q."""


def _solve_queues(batch: int, loads: Reals, count: int) -> _Queues:
    """Steps 1 and 2 of the module docstring on N = `count` points; `loads` is (n,)."""
    arrivals = loads * batch
    log_radius = _log_radius(loads)[:, None]
    log_z = log_radius - 2j * np.pi * np.arange(count // 2 + 1) / count
    step = np.exp(arrivals[:, None] * (np.exp(log_z) - 1.0) - batch * log_z)
    # A half circle holds all of a real sequence's transform, so this yields c_j R^j; keep j = 1 .. N/2 - 1.
    coefficients = np.fft.irfft(-np.log(1.0 - step), count)
    coefficients[:, 0] = 0.0
    coefficients[:, count // 2 :] = 0.0
    at_one = np.sum(coefficients * np.exp(-log_radius * np.arange(count)), axis=1)
    return _Queues(
        batch=batch,
        arrivals=arrivals,
        idle_probability=np.exp(-at_one - arrivals),
        log_z=log_z,
        waiting=np.exp(np.fft.rfft(coefficients) - at_one[:, None]),
    )


def _late_per_start(queues: _Queues, queue_of_pair: Indices, ratio: Reals) -> Reals:
    """Mean number of late requests per start, (m,), of m pairs of a queue and a ratio >= 1 (steps 3 and 4)."""
    log_z = queues.log_z[queue_of_pair]
    z = np.exp(log_z)
    arrivals = queues.arrivals[queue_of_pair]
    executions = np.floor(ratio - 1.0)
    late_span = 1.0 - (ratio - 1.0 - executions)
    is_first = executions == 0.0

    def excess(threshold: Reals, span: Reals) -> Complexes:
        growth = (arrivals * span)[:, None] * (z - 1.0)
        return np.exp(growth - (queues.batch * threshold)[:, None] * log_z)

    # min(max(x, 0), b) = max(x, 0) - max(x - b, 0). For k = 0 the mean of the first is E Q + a(1 - f), and E Q is in
    # turn an excess over b after an entire execution.
    first = excess(
        np.where(is_first, 1.0, executions), np.where(is_first, 1.0, late_span)
    )
    beyond = first - excess(executions + 1.0, late_span)
    mean = _mean_on_circle(queues.waiting[queue_of_pair] * beyond, z)
    result: Reals = mean + np.where(is_first, arrivals * late_span, 0.0)
    return result


def _mean_on_circle(transforms: Complexes, z: Complexes) -> Reals:
    """(m,) means over the circle of transforms (m, N/2 + 1) times z / (z - 1)², from its upper half."""
    terms = (transforms * z / (z - 1.0) ** 2).real
    # The lower half mirrors the upper one; only the two points on the real axis occur once.
    count = 2 * (terms.shape[1] - 1)
    mean: Reals = (2.0 * terms.sum(axis=1) - terms[:, 0] - terms[:, -1]) / count
    return mean
