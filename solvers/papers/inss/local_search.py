"""Local search over provisions of a small fleet: every slot in turn takes its best option, and pairs of slots swap.

Many starts are improved side by side; the best of all is the answer. A pass costs J evaluations of N · A provisions and
one of N · J², so this is for fleets of some tens of GPUs.

Score, greater is better: Σ_s λ_s p_s · min(1, h_s / λ_s), what is served by weight (λ rates, p priorities, h what
replicas carry), as a share of all; 0.3 times the least h_s / λ_s up to 1, so that shortage is shared: what is planned
is cautious, and a small shortage may be none; then, counting a fiftieth, the least h_s / λ_s up to 2: room for rates to
grow until the next decision; then few SM percents, so that a slot does not hold what another one needs.

Source: ours, for where InSS (section 5.2) has no valid actor, or its proposals fall short.
"""

import numpy as np

from solvers.papers.inss.training.world import ProvisioningWorld
from solvers.papers.inss.training.world_rows import Indices, Reals

EVEN_WEIGHT = 0.3
_ROOM_WEIGHT, _MAX_ROOM = 0.02, 2.0
_PERCENT_WEIGHT = 1e-5
_GAIN = 1e-9


def random_starts(
    world: ProvisioningWorld, rates_rps: Reals, *, count: int, seed: int
) -> Indices:
    """(count, J) lawful provisions: slots in turn take a random option; the first start is empty."""
    random = np.random.default_rng(seed)
    chosen = np.full((count, world.slots), world.options - 1, dtype=np.intp)
    rates = np.tile(rates_rps, (count, 1))
    for slot in range(world.slots):
        weights = world.allowed(chosen, slot, rates) * random.random(
            (count, world.options)
        )
        # Narrow shares are preferred, so that the later slots find room.
        weights /= 1.0 + world.option_percents / 20.0
        chosen[1:, slot] = weights.argmax(axis=1)[1:]
    return chosen


def improve(
    world: ProvisioningWorld,
    starts: Indices,
    rates_rps: Reals,
    queued: Reals,
    weights: Reals,
    *,
    passes: int,
) -> tuple[Indices, float]:
    """The best provision (J,) that is reached from N starts, and its score; rates, queues and weights: (S,)."""
    chosen = starts.copy()
    scores = _scores(world, chosen, rates_rps, queued, weights)
    for _ in range(passes):
        before = scores.copy()
        for slot in range(world.slots):
            trials = np.repeat(chosen, world.options, axis=0)
            trials[:, slot] = np.tile(np.arange(world.options), len(chosen))
            chosen, scores = _best_of(
                world,
                trials,
                len(chosen),
                rates_rps=rates_rps,
                queued=queued,
                weights=weights,
            )
        chosen, scores = _best_of(
            world,
            _swaps(chosen),
            len(chosen),
            rates_rps=rates_rps,
            queued=queued,
            weights=weights,
        )
        if (scores <= before + _GAIN).all():
            break
    best = int(scores.argmax())
    return chosen[best], float(scores[best])


def _best_of(
    world: ProvisioningWorld,
    trials: Indices,
    starts: int,
    *,
    rates_rps: Reals,
    queued: Reals,
    weights: Reals,
) -> tuple[Indices, Reals]:
    """Of each start's trials (starts · T, J) the best, and its score."""
    scores = _scores(world, trials, rates_rps, queued, weights).reshape(starts, -1)
    best = scores.argmax(axis=1)
    rows = np.arange(starts)
    return trials.reshape(starts, -1, trials.shape[1])[rows, best], scores[rows, best]


def _swaps(chosen: Indices) -> Indices:
    """Each provision, and every one in which two slots have swapped their options: (N · T, J)."""
    slots = chosen.shape[1]
    left, right = np.triu_indices(slots, 1)
    swapped = np.repeat(chosen[:, None, :], len(left) + 1, axis=1)
    pairs = np.arange(len(left))
    swapped[:, pairs, left], swapped[:, pairs, right] = (
        chosen[:, right],
        chosen[:, left],
    )
    return swapped.reshape(-1, slots)


def _scores(
    world: ProvisioningWorld,
    chosen: Indices,
    rates_rps: Reals,
    queued: Reals,
    weights: Reals,
) -> Reals:
    count = len(chosen)
    decided = world.decide(chosen, np.broadcast_to(queued, (count, len(queued))))
    room = world.carried_of_services(decided) / np.maximum(rates_rps, 1e-9)
    wanted = rates_rps > 0.0
    if not wanted.any():
        return np.zeros(count)
    value = rates_rps * weights
    served = (np.minimum(room, 1.0) * value)[:, wanted].sum(axis=1) / value[
        wanted
    ].sum()
    least = np.minimum(room[:, wanted].min(axis=1), _MAX_ROOM)
    percents = world.option_percents[chosen].sum(axis=1)
    # A second replica of a service on the same GPU is never lawful.
    is_lawful = ~world.repeats_service(chosen)
    even = EVEN_WEIGHT * np.minimum(least, 1.0)
    return np.where(
        is_lawful,
        served + even + _ROOM_WEIGHT * least - _PERCENT_WEIGHT * percents,
        -1.0,
    )
