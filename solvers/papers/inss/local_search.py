"""Local search over provisions of a small fleet: every slot in turn takes its best option, and pairs of slots swap.

Many starts are improved side by side; the best of all is the answer. A pass costs J evaluations of N · A provisions and
one of N · J², so this is for fleets of some tens of GPUs. Where the budget ends, the best so far is the answer.

Score, greater is better: Σ_s λ_s p_s · min(1, h_s / λ_s), what is served by weight (λ rates, p priorities, h what
replicas carry), as a share of all; 0.3 times the least h_s / λ_s up to 1, so that shortage is shared: what is planned
is cautious, and a small shortage may be none; then, counting a fiftieth, the least h_s / λ_s up to 2: room for rates to
grow until the next decision; then few SM percents, so that a slot does not hold what another one needs.

Source: ours, for where InSS (section 5.2) has no valid actor, or its proposals fall short.
"""

import numpy as np

from solvers.papers.inss.options import ServiceFigures
from solvers.papers.inss.training.world import ProvisioningWorld
from solvers.papers.inss.training.world_rows import Indices, Reals
from solvers.types.outcome import Budget

EVEN_WEIGHT = 0.3
_ROOM_WEIGHT, _MAX_ROOM = 0.02, 2.0
_PERCENT_WEIGHT = 1e-5
_GAIN = 1e-9
SLOTS_PER_WORK_UNIT = 1_500_000
"""Slots of trials that are judged in about a second."""


class SearchEffort:
    """What searches may still cost together: a plan's work, and its seconds as the last resort."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._left = budget.work * SLOTS_PER_WORK_UNIT
        self.is_spent = False

    def allows(self, trials: Indices) -> bool:
        """Whether these provisions may be judged; they are paid for if so."""
        self._left -= trials.size
        if self._left < 0.0 or self._budget.remaining_s() <= 0.0:
            self.is_spent = True
        return not self.is_spent


def random_starts(
    world: ProvisioningWorld,
    rates_rps: Reals,
    *,
    count: int,
    seed: int,
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
        # All rows are drawn, the empty first one as well, so that its being kept changes no other start.
        chosen[1:, slot] = weights.argmax(axis=1)[1:]
    return chosen


def improve(
    world: ProvisioningWorld,
    starts: Indices,
    figures: ServiceFigures,
    *,
    passes: int,
    effort: SearchEffort,
) -> tuple[Indices, float]:
    """The best provision (J,) that is reached from N starts, and its score."""
    chosen = starts.copy()
    scores = _scores(world, chosen, figures)
    for _ in range(passes):
        before = scores
        chosen, scores = _after_pass(world, chosen, scores, figures, effort)
        if effort.is_spent or (scores <= before + _GAIN).all():
            break
    best = int(scores.argmax())
    return chosen[best], float(scores[best])


def _after_pass(
    world: ProvisioningWorld,
    chosen: Indices,
    scores: Reals,
    figures: ServiceFigures,
    effort: SearchEffort,
) -> tuple[Indices, Reals]:
    """The provisions (N, J) after each slot has taken its best option and the best pair has swapped; their scores."""
    count = len(chosen)
    for slot in range(world.slots):
        trials = np.repeat(chosen, world.options, axis=0)
        trials[:, slot] = np.tile(np.arange(world.options), count)
        if not effort.allows(trials):
            return chosen, scores
        chosen, scores = _best_of(world, trials, count, figures)
    # Two slots that hold each other's best place cannot improve one after the other.
    swaps = _swaps(chosen)
    if not effort.allows(swaps):
        return chosen, scores
    return _best_of(world, swaps, count, figures)


def _best_of(
    world: ProvisioningWorld,
    trials: Indices,
    starts: int,
    figures: ServiceFigures,
) -> tuple[Indices, Reals]:
    """The best of each start's trials (starts · T, J), and its score."""
    scores = _scores(world, trials, figures).reshape(starts, -1)
    best = scores.argmax(axis=1)
    rows = np.arange(starts)
    return trials.reshape(starts, -1, trials.shape[1])[rows, best], scores[rows, best]


def _swaps(chosen: Indices) -> Indices:
    """Each provision, and every one in which two slots have swapped their options: (N · T, J)."""
    slots = chosen.shape[1]
    left, right = np.triu_indices(slots, 1)
    # One copy more than there are pairs: the last stays as it is, so that no start becomes worse.
    swapped = np.repeat(chosen[:, None, :], len(left) + 1, axis=1)
    pairs = np.arange(len(left))
    swapped[:, pairs, left] = chosen[:, right]
    swapped[:, pairs, right] = chosen[:, left]
    return swapped.reshape(-1, slots)


def _scores(
    world: ProvisioningWorld,
    chosen: Indices,
    figures: ServiceFigures,
) -> Reals:
    rates_rps, queued, weights = figures
    wanted = rates_rps > 0.0
    if not wanted.any():
        return np.zeros(len(chosen))
    decided = world.decide(chosen, np.broadcast_to(queued, (len(chosen), len(queued))))
    room = world.carried_of_services(decided) / np.maximum(rates_rps, 1e-9)
    served = _served_shares(room[:, wanted], (rates_rps * weights)[wanted])
    min_room = np.minimum(room[:, wanted].min(axis=1), _MAX_ROOM)
    percents = world.option_percents[chosen].sum(axis=1)
    even = EVEN_WEIGHT * np.minimum(min_room, 1.0)
    score = served + even + _ROOM_WEIGHT * min_room - _PERCENT_WEIGHT * percents
    # A second replica of a service on the same GPU is never lawful, but a trial may have one.
    return np.where(world.repeats_service(chosen), -1.0, score)


def _served_shares(room: Reals, values: Reals) -> Reals:
    """(N,) what is served of all that services (S,) are worth; room (N, S): what they carry over their rates."""
    return np.asarray((np.minimum(room, 1.0) * values).sum(axis=1) / values.sum())
