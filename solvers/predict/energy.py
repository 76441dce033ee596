"""Energy: OLTunes' estimate of what a task costs, and joules per request from predicted watts.

    EPC = P_base + (TDP − P_base) · SM · memory used / memory total · latency        OLTunes, equation 7

SM and memory stand in for utilisation, latency is in seconds. The sum adds watts to joules, so that an EPC only ranks
choices for the same task, and only latencies of about a second or more count against P_base. Its second worked example
says that task 2 takes 3.5 s on GPU B, but the printed 113.2 follows from 3.8 s; that GPU A wins holds with both. (The
efficiencies of its Table 2, which EPC does not use, are wrong for A100 and A30: TFLOPS / TDP is 0.078 and 0.0624.)

Where watts were measured, `energy_per_request_j` says what a request costs; it needs no TDP and no utilisation.
"""

import numpy as np
import numpy.typing as npt

from solvers.predict.samples import Reals


def estimated_power_consumption(
    *,
    base_w: npt.ArrayLike,
    tdp_w: npt.ArrayLike,
    sm_percent: npt.ArrayLike,
    memory_share: npt.ArrayLike,
    latency_s: npt.ArrayLike,
) -> Reals:
    """EPC as printed, for arrays that go together in shape.

    `memory_share`: memory used / memory of the GPU, 0 to 1. Raises ValueError where a GPU's TDP is below its base.
    """
    base, tdp = np.asarray(base_w, dtype=np.float64), np.asarray(tdp_w, dtype=np.float64)
    if np.any(tdp < base):
        raise ValueError(f"the base power {base} W must not be above the TDP {tdp} W")
    utilisation = np.asarray(sm_percent) / 100.0 * np.asarray(memory_share)
    return np.asarray(base + (tdp - base) * utilisation * np.asarray(latency_s))


def energy_per_request_j(
    power_w: npt.ArrayLike, latency_ms: npt.ArrayLike, batch: npt.ArrayLike, *, idle_w: npt.ArrayLike = 0.0
) -> Reals:
    """Joules of one request: (power − idle) · latency / batch, for arrays that go together in shape.

    `power_w`: watts of the GPU while the batch runs. `idle_w`: what the GPU draws anyway and the request is not charged
    with; 0 charges all of it. Watts that are predicted below idle cost nothing.
    """
    above_w = np.maximum(np.asarray(power_w, dtype=np.float64) - np.asarray(idle_w), 0.0)
    return np.asarray(above_w * np.asarray(latency_ms) / 1000.0 / np.asarray(batch))
