"""What the planner believes of networks that share GPUs without SM limits: duties, a sensitivity each, one overload.

As somebody would know it who had read each network's duty from counters, and had run half of all pairs side by side for
a minute, and some fours and eights. A network's pressure is its duty. On one GPU type:

    sets        networks i; profiled sets k, each of a network i(k) and its neighbours j
    parameters  u_i duty; Π_k = Σ_j u_j; z_k = max(0, Π_k − (1 − u_i(k))); y_k measured growth of a batch's time
    variables   s_i ≥ 0 sensitivity; b ≥ 0 overload
    objective   min Σ_k ((s_i(k) · Π_k + b · z_k − y_k) / (1 + y_k))² + Σ_i (SHRINKAGE · (s_i − s̄))²

s̄ is the sensitivity that fits all networks best as one. Source of the law: fair sharing of GPU time by duty, which
explains Abacus's pairs (`agents.sim.truth.partners`), made linear beyond a whole GPU; shares no formula with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from agents.sim.truth.curves import FloatArray
from agents.sim.truth.truth import Truth
from bench.catalogue.measured import CatalogueType, NetworkFacts
from bench.catalogue.partner_belief import BATCH, NOISE, profiled_sets, running
from solvers.predict.data.samples import Neighbour

DUTY_NOISE = 0.03
"""Relative standard deviation of a duty that was read from counters."""
SHRINKAGE = 0.5
"""As much as one sample says next to a pressure of 0.5; between 0.3 and 1 pairs that were not sampled err alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UncappedBelief:
    """The law on one GPU type."""

    duties: Mapping[str, float]
    """Each network's pressure."""
    sensitivities: Mapping[str, float]
    overload: float


def profile_uncapped(
    truth: Truth,
    networks: Sequence[NetworkFacts],
    gpu_type: CatalogueType,
    *,
    seed: int,
) -> UncappedBelief:
    """Run the sets side by side in the simulator and fit the law to what was read."""
    random = np.random.default_rng([seed, *gpu_type.name.encode()])
    names = [each.name for each in networks]
    alone = [running(gpu_type, Neighbour(name, BATCH, 100.0)) for name in names]
    noise = 1.0 + DUTY_NOISE * random.standard_normal(len(names))
    duty = np.minimum(1.0, noise * [truth.duty(each, BATCH) for each in alone])
    sets = list(profiled_sets(names, random, is_capped=False))
    own = np.array([names.index(each.network) for each, _ in sets])
    pressure = np.array(
        [sum(duty[names.index(each.network)] for each in others) for _, others in sets]
    )
    together_ms = np.array(
        [truth.execution_ms(running(gpu_type, *each), BATCH) for each in sets]
    )
    together_ms *= 1.0 + NOISE * random.standard_normal(len(sets))
    alone_ms = np.array([truth.execution_ms(each, BATCH) for each in alone])
    beyond = np.maximum(0.0, pressure - (1.0 - duty[own]))
    growth = together_ms / alone_ms[own] - 1.0
    sensitivities, overload = _fit(own, pressure, beyond, growth)
    return UncappedBelief(
        duties=dict(zip(names, duty.tolist(), strict=True)),
        sensitivities=dict(zip(names, sensitivities.tolist(), strict=True)),
        overload=overload,
    )


def _fit(
    own: np.ndarray, pressure: FloatArray, beyond: FloatArray, growth: FloatArray
) -> tuple[FloatArray, float]:
    """(N,) sensitivities, and the overload; own: (K,) each set's network."""
    weight = 1.0 / (1.0 + np.maximum(growth, 0.0))
    (mean, _), _ = nnls(
        np.column_stack((pressure, beyond)) * weight[:, None], growth * weight
    )
    networks = int(own.max()) + 1
    table = np.zeros((len(own) + networks, networks + 1))
    table[np.arange(len(own)), own] = pressure * weight
    table[: len(own), networks] = beyond * weight
    # One row for each network draws it towards the mean, so that a few noisy samples do not decide.
    table[len(own) :, :networks] = SHRINKAGE * np.eye(networks)
    wanted = np.append(growth * weight, np.full(networks, SHRINKAGE * mean))
    found, _ = nnls(table, wanted)
    return found[:networks], float(found[networks])
