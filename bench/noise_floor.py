"""The noise floor of measured latencies: how far off a predictor is that knows every true latency.

There are no replicates in rapp_v100, but 20 SM shares of each curve. A smooth curve passes through a point and its
neighbours: y, its ln latency, is compared with the polynomial in ln share through its nearest measured neighbours at
the same batch and quota, y − Σ wᵢ·yᵢ. Of independent noise with standard deviation σ that residual has
σ·√(1 + Σ wᵢ²); what it is more is curvature. A line through two neighbours sees the bend at a knee as noise, a cubic
through four hardly does; the cubic's figure is quoted where both are given. Steps that are real (whole waves of thread
blocks) count as noise in both, and a technique that learns the steps from other networks may come out below the floor.

With few large disturbances, which the residuals of all neighbours share, the mean exceeds the floor; the median does
not. R² of that predictor: 1 − Σ (σᵢ·latencyᵢ)² / Σ (latencyᵢ − mean)².
"""

import numpy as np

from bench.report import Figures
from solvers.predict.data.samples import Reals, Samples

WIDEST_GAP = 10.0
"""Percent of the SMs from a point to the next measured one; further apart a curve may bend unseen."""


def noise_rows(name: str, samples: Samples) -> list[Figures]:
    """Figures by a line and by a cubic."""
    return [
        _figures(f"{name}, {form}", samples, neighbours)
        for form, neighbours in (("line", 1), ("cubic", 2))
    ]


def _figures(name: str, samples: Samples, each_side: int) -> Figures:
    noise, latency_ms = residuals(samples, each_side=each_side)
    spread = np.sum((latency_ms - latency_ms.mean()) ** 2)
    return {
        "noise floor": name,
        "points": len(noise),
        "mean_percent": 100.0 * float(np.mean(np.abs(noise))),
        "median_percent": 100.0 * float(np.median(np.abs(noise))),
        "p90_percent": 100.0 * float(np.quantile(np.abs(noise), 0.9)),
        "r2": f"{1.0 - float(np.sum((noise * latency_ms) ** 2) / spread):.4f}",
    }


def residuals(samples: Samples, *, each_side: int) -> tuple[Reals, Reals]:
    """Noise in ln latency and latency of every point with that many near neighbours on each side."""
    at = samples.at
    keys = list(
        zip(at.network, at.batch.tolist(), at.time_quota_percent.tolist(), strict=True)
    )
    curves: dict[tuple[str, float, float], list[int]] = {}
    for row in sorted(
        range(len(samples)), key=lambda row: (keys[row], at.sm_percent[row])
    ):
        curves.setdefault(keys[row], []).append(row)
    noise, latency_ms = [], []
    for rows in curves.values():
        share, latency = at.sm_percent[rows], samples.latency_ms[rows]
        for middle in range(each_side, len(rows) - each_side):
            window = slice(middle - each_side, middle + each_side + 1)
            if np.diff(share[window]).max() <= WIDEST_GAP:
                noise.append(_noise(np.log(share[window]), np.log(latency[window])))
                latency_ms.append(float(latency[middle]))
    return np.array(noise), np.array(latency_ms)


def _noise(log_share: Reals, log_latency: Reals) -> float:
    """What the middle point is off the polynomial through the others, in standard deviations of one point."""
    middle = len(log_share) // 2
    others = np.delete(log_share, middle)
    # Lagrange's weights.
    weights = np.array(
        [
            np.prod(
                (log_share[middle] - np.delete(others, own))
                / (others[own] - np.delete(others, own))
            )
            for own in range(len(others))
        ]
    )
    residual = log_latency[middle] - weights @ np.delete(log_latency, middle)
    return float(residual / np.sqrt(1.0 + weights @ weights))
