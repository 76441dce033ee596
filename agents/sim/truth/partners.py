"""What networks on one GPU do to each other: the factor on a batch's time next to the others.

Replica i next to j ≠ i, u = duty (share of a batch's time in which its kernels fill its SMs), p = SM percent, P = that
of all neighbours together, m = use of the memory's bandwidth while it runs:

    factor_i = (fair_i + Σ_j excess_ij + bound_i · max(0, m_i + Σ_j m_j − 1)) · same_i · noise_i

Capped, SM percents sum to at most 100: fair_i = 1, and partners meet in caches and memory,

    excess_ij = E · exp(0.35 v_i + 0.10 o_j + 0.18 w_ij) · (P / 50)^η · (0.3 + 0.7 u_j) · p_j / P

with E and η of the board. On a V100 η is 0: a neighbour costs the same whatever its share, so several small ones cost
no more than one as large as all of them, as in iGniter's law, where their use of the cache adds up. A pair that was
measured is read off its table instead, on other boards with its excess scaled by theirs.

Training is a partner as well there: pairs of both kinds obey one such law on our H100 (`python -m bench.partners`).

Uncapped, they take turns: fair_i = (1 − u_i) + u_i · s with the least s ≥ 1 at which the GPU's SMs suffice,
Σ_k p_k / 100 · u_k / ((1 − u_k) + u_k · s) ≤ 1; E is 0.03 on every board, and excess_ij has no more terms than the
spreads.

v, o, w and the noise's z are standard normal numbers that belong to the names: different for each ordered pair, and no
formula of features gives them. Measured: iGniter's six pairs on a V100 and ResNet-50 twice on an A100. Estimated: all
other capped pairs, with the spreads of iGniter's, and inference without limits, by duties (Abacus, ParvaGPU).
Synthetic: capped networks next to themselves. bench/partners.py holds it against the data.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from agents.sim.truth.curves import FloatArray

MEMORY_USE = 0.60
"""Use of the memory's bandwidth by a whole GPU's worth of kernels: gpu-lets' CNNs at batch 32 reach 0.56 to 0.62."""
_MEMORY_EXPONENT = 0.7
"""Half of the SMs reach 0.62 of the bandwidth that all of them do."""
_VICTIM_SPREAD, _NEIGHBOUR_SPREAD, _PAIR_SPREAD = 0.35, 0.10, 0.18
"""Standard deviations of ln excess: the components of variance of iGniter's pairs."""
_UNCAPPED_EXCESS = 0.03
_UNCAPPED_NOISE = 0.06
"""Standard deviation of ln factor that fair sharing leaves unexplained of Abacus's pairs."""
_SAME_CAPPED, _SAME_UNCAPPED = 1.25, 1.08
"""Capped on the excess, uncapped on the factor: ParvaGPU's identical processes lose 8 % more than fair sharing says."""
_IDLE_EXCESS = 0.3
"""Part of a neighbour's excess that remains where its kernels hardly ever run."""
_NEAREST = 4
_SHARE_WEIGHT = 4.0
"""A doubled share tells as much apart as four doubled batches (leave-one-out on iGniter's visible pairs: 0.5 %)."""
_SOFTENING = 0.3
"""Distance at which a measured row's weight has fallen to a quarter: rows nearby average their noise."""


class Partner(NamedTuple):
    """One replica or task as its neighbours feel it."""

    network: str
    sm_percent: float
    batch: int
    duty: float
    """0 to 1."""
    memory_bound: float
    """Share of kernel time that waits for memory, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardSharing:
    """How much partners of median kind cost on one GPU type, capped."""

    excess: float
    """Next to a neighbour with half of the SMs that is always busy."""
    share_exponent: float
    """Growth of the excess with the neighbour's SM percent."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredPairs:
    """All measured rows of one ordered pair on one board."""

    board: BoardSharing
    conditions: FloatArray
    """(N, 3) log2 of the neighbour's SM percent, of the own batch and of the neighbour's."""
    excesses: FloatArray
    """(N,) factor − 1."""

    def excess(self, own: Partner, other: Partner) -> float:
        """Mean of the nearest rows, by inverse squared distance; at least 0, as measured gains are noise."""
        wanted = np.log2([other.sm_percent, own.batch, other.batch])
        distances = np.abs(self.conditions - wanted) @ [_SHARE_WEIGHT, 1.0, 1.0]
        nearest = np.argsort(distances, kind="stable")[:_NEAREST]
        weights = (distances[nearest] + _SOFTENING) ** -2.0
        return max(0.0, float(np.average(self.excesses[nearest], weights=weights)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartnerTruth:
    """Factors between networks."""

    boards: Mapping[str, BoardSharing]
    """By GPU type."""
    measured: Mapping[tuple[str, str], MeasuredPairs]
    """By network and neighbour."""

    def factor(
        self, own: Partner, others: Sequence[Partner], *, gpu_type: str
    ) -> float:
        """By how much the others stretch a batch; 1 without any."""
        if not others:
            return 1.0
        # Above 100 % nothing keeps the kernels of different processes apart.
        if is_uncapped((own, *others)):
            return self._uncapped(own, others)
        board, percent = self.boards[gpu_type], sum(each.sm_percent for each in others)
        excess = sum(
            self._excess(own, other._replace(sm_percent=percent), board)
            * (other.sm_percent / percent)
            for other in others
        )
        return 1.0 + excess + _memory_excess(own, others)

    def provenance(
        self, own: Partner, others: Sequence[Partner], *, gpu_type: str
    ) -> str:
        """How the factor is known, by its weakest pair: measured, scaled, estimated or synthetic."""
        if is_uncapped((own, *others)):
            return "estimated"
        pairs = (self._pair_provenance(own, other, gpu_type) for other in others)
        return max(pairs, key=PROVENANCES.index, default="measured")

    def _pair_provenance(self, own: Partner, other: Partner, gpu_type: str) -> str:
        pairs = self.measured.get((own.network, other.network))
        if pairs is not None:
            is_own = pairs.board == self.boards[gpu_type]
            return "measured" if is_own else "scaled"
        return "synthetic" if own.network == other.network else "estimated"

    def _excess(self, own: Partner, other: Partner, board: BoardSharing) -> float:
        """That of a single neighbour."""
        pairs = self.measured.get((own.network, other.network))
        if pairs is not None:
            steeper = board.share_exponent - pairs.board.share_exponent
            scale = board.excess / pairs.board.excess
            share = math.pow(other.sm_percent / 50.0, steeper)
            return pairs.excess(own, other) * scale * share
        return (
            board.excess
            * _spread(own, other)
            * math.pow(other.sm_percent / 50.0, board.share_exponent)
            * (_IDLE_EXCESS + (1.0 - _IDLE_EXCESS) * other.duty)
            * (_SAME_CAPPED if own.network == other.network else 1.0)
        )

    def _uncapped(self, own: Partner, others: Sequence[Partner]) -> float:
        together = (own, *others)
        fair = fair_factors(
            [each.duty for each in together], [each.sm_percent for each in together]
        )
        excess = sum(_UNCAPPED_EXCESS * _spread(own, other) for other in others)
        noise = sum(draw("noise", own.network, other.network) for other in others)
        is_same = any(other.network == own.network for other in others)
        return (
            (fair[0] + excess + _memory_excess(own, others))
            * (_SAME_UNCAPPED if is_same else 1.0)
            * math.exp(_UNCAPPED_NOISE * noise / math.sqrt(len(others)))
        )


PROVENANCES = ("measured", "scaled", "estimated", "synthetic")
"""From the best known on."""


def is_uncapped(partners: Sequence[Partner]) -> bool:
    """Whether they may use more SMs than there are, so that no limit holds their kernels apart."""
    return sum(partner.sm_percent for partner in partners) > 100.0 + 1e-6


def fair_factors(
    duties: Sequence[float], sm_percents: Sequence[float]
) -> tuple[float, ...]:
    """How much each of several processes is stretched that share a GPU's SMs fairly, by their duties alone.

    Kernels stretch by s, the rest of a batch does not: (1 − u) + u · s, with the least s ≥ 1 at which the SMs suffice.
    Two that always want all SMs halve each other; next to one that hardly runs none loses much.
    """

    def demand(stretch: float) -> float:
        return sum(
            percent / 100.0 * duty / ((1.0 - duty) + duty * stretch)
            for duty, percent in zip(duties, sm_percents, strict=True)
        )

    # The demand falls along the stretch, and with as many GPUs it would suffice; 50 halvings reach the last digits.
    low, high = 1.0, 1.0
    if demand(low) > 1.0:
        high = float(len(duties))
        for _ in range(50):
            middle = (low + high) / 2.0
            low, high = (middle, high) if demand(middle) > 1.0 else (low, middle)
    return tuple((1.0 - duty) + duty * high for duty in duties)


def memory_factor(memory_bound: float, uses: Sequence[float]) -> float:
    """Factor on a process of which that share waits for memory, where all together use these shares of it."""
    return 1.0 + memory_bound * max(0.0, sum(uses) - 1.0)


def _memory_excess(own: Partner, others: Sequence[Partner]) -> float:
    uses = [
        MEMORY_USE * each.duty * (each.sm_percent / 100.0) ** _MEMORY_EXPONENT
        for each in (own, *others)
    ]
    return memory_factor(own.memory_bound, uses) - 1.0


def _spread(own: Partner, other: Partner) -> float:
    return math.exp(
        _VICTIM_SPREAD * draw("victim", own.network)
        + _NEIGHBOUR_SPREAD * draw("neighbour", other.network)
        + _PAIR_SPREAD * draw("pair", own.network, other.network)
    )


@lru_cache(maxsize=8192)
def draw(*names: str) -> float:
    """A number that belongs to these names, as if drawn from a standard normal distribution."""
    # A cryptographic hash, since the checksums of similar names are similar.
    digest = hashlib.blake2b("/".join(names).encode(), digest_size=8).digest()
    return NormalDist().inv_cdf((int.from_bytes(digest, "big") + 0.5) / 2.0**64)
