"""The synthetic half of training's truth: steps over SM percent.

No training times under SM limits of MPS were published. The shape here has the features that measured ones of
inference and of MIG slices (MISO) show: a floor that the host sets, a knee that moves with the batch, work that shrinks
a little slower than the share grows, and unevenness, drawn by checksum, that no smooth law follows.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import linear_regression

SHARES = tuple(float(share) for share in range(5, 101, 5))
FASTER_SHARES = (125.0, 160.0, 200.0, 250.0, 320.0, 400.0)
"""Of a V100, which faster GPUs act as: an H200 as 320 to 350 %."""

_KNEE_SHARPNESS = 4.0
"""Of the rounded maximum of host and work: at the knee a step takes 2 ** (1 / 4) = 1.19 times either."""
_HOST_ALONE, _WORK_ALONE = 0.80, 0.75
"""Parts of the step of a network with a single batch size, CycleGAN: on an A100, 1.42 V100s, 1.5 and 4.1 times the step
on 3/7 and 1/7 of the SMs, where MISO's slices took 1.39 and 4.17 times."""
_WIGGLE = 0.05
_STRICTLY = 1.002
"""Each smaller share is slower by at least this much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """One batch's step: the rounded maximum of what the host and what the SMs take, in any one unit."""

    host: float
    """What no SM shortens."""
    work: float
    """What all the SMs of a V100 take."""
    exponent: float

    def over(self, share: float) -> float:
        """Step at `share` percent of a V100 over that at 100 %; `share` may exceed 100."""
        return self._raw(share) / self._raw(100.0)

    @property
    def floor(self) -> float:
        """What is left of the step at 100 % however many SMs there are."""
        return self.host / self._raw(100.0)

    def _raw(self, share: float) -> float:
        work = self.work * (100.0 / share) ** self.exponent
        return float(
            (self.host**_KNEE_SHARPNESS + work**_KNEE_SHARPNESS)
            ** (1.0 / _KNEE_SHARPNESS)
        )


def step_shapes(whole_ms: Mapping[int, float], exponent: float) -> dict[int, StepShape]:
    """By batch (ascending), from the measured steps of all batches on a whole V100.

    Work is batch times the least time per item. The host's part is the intercept of a line through the steps, and at
    least so much that no larger batch has a lower floor than a smaller one.
    """
    per_item_ms = min(step_ms / batch for batch, step_ms in whole_ms.items())
    if len(whole_ms) > 1:
        host_ms = linear_regression(list(whole_ms), list(whole_ms.values())).intercept
    else:
        host_ms, per_item_ms = (
            _HOST_ALONE * min(whole_ms.values()),
            _WORK_ALONE * per_item_ms,
        )
    shapes: dict[int, StepShape] = {}
    floor_ms = 0.0
    for batch, step_ms in whole_ms.items():
        work_ms = batch * per_item_ms
        min_ms = work_ms * _host_over_work(floor_ms / step_ms)
        shapes[batch] = StepShape(
            host=max(host_ms, min_ms), work=work_ms, exponent=exponent
        )
        floor_ms = max(floor_ms, step_ms * shapes[batch].floor)
    return shapes


def _host_over_work(floor: float) -> float:
    """host / work of the shape with that floor (0 to below 1): floor = h / (h ** k + 1) ** (1 / k), solved for h."""
    return float(floor / (1.0 - floor**_KNEE_SHARPNESS) ** (1.0 / _KNEE_SHARPNESS))


def uneven_steps(
    shape: StepShape, whole_ms: float, name: str
) -> list[tuple[float, float]]:
    """(SM percent of a V100, step in ms), falling; at 100 % it is `whole_ms` itself, and above it is even."""
    steps = [(100.0, whole_ms)]
    for share in SHARES[-2::-1]:
        uneven = 1.0 + _WIGGLE * draw(f"{name}/{share:g}")
        steps.append(
            (
                share,
                max(steps[-1][1] * _STRICTLY, whole_ms * shape.over(share) * uneven),
            )
        )
    return [
        *steps[::-1],
        *((share, whole_ms * shape.over(share)) for share in FASTER_SHARES),
    ]


def draw(name: str) -> float:
    """A number from -1 to 1 that belongs to the name."""
    return 2.0 * zlib.crc32(name.encode()) / 0xFFFFFFFF - 1.0


def normal_draws(name: str, count: int) -> Sequence[float]:
    """`count` numbers that belong to the name, of mean 0 and standard deviation 1 (twelve uniform ones summed)."""
    return [
        sum(draw(f"{name}/{each}/{part}") for part in range(12)) / 2.0
        for each in range(count)
    ]
