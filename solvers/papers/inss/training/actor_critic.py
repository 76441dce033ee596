"""Soft actor-critic for discrete actions (SAC-D): trains the actor that provisions GPUs. Needs PyTorch (extra `rl`).

    J_Q(θ_v) = E ½ (y − Q_v(x, a))²                           each of both critics on its own residual
    y        = r + γ' · π(x')ᵀ [min_v Q'_v(x') − τ log π(x')]
    J_π(φ)   = E π(x)ᵀ [τ log π(x) − min_v Q_v(x)]
    J(τ)     = E π(x)ᵀ [−τ (log π(x) + H)]
    θ'_v     ← κ θ_v + (1 − κ) θ'_v

x is what the service that chooses next sees (`World.features`), a its option, r what the choice adds to the reward of
the round, γ' = γ after the last service of a round and 1 before. All networks have layers of 512 and 256 units (ReLU)
and one output of A values per slot: the factored head.

Source: InSS, section 5.4 and Table 1; Christodoulou 2019 for discrete actions. Changed:

* The paper's eq. 6 takes the minimum of both critics in the residual, which trains one of them only; here each is
  trained on its own. Its joint action of all services would have A^J values; here services choose in turn.
* γ is 0, not 0.99: a provision does next to nothing to the loads that come after it, so the values of later rounds only
  bury the differences between options. A first training with γ = 0.99, Table 1's rates and no rule, in an earlier and
  stricter form of this world, stood at 38 % late requests from episode 480 to 700; this one at 5 % after 1500.
* Some courses are played by a simple rule (`_follow_rule`) instead of the actor, so that there is something good to
  learn from before the actor finds it by chance; SAC learns from whatever was played. Learning rates of actor and
  critics are 5e-4. One update is made per `_ROUNDS_PER_UPDATE` steps of a course, not per step: half an hour of one
  core is the limit.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from solvers.papers.inss.training.actor import HIDDEN, Floats, Layers
from solvers.papers.inss.training.load_courses import STEPS, Courses
from solvers.papers.inss.training.world import ProvisioningWorld, late_shares
from solvers.papers.inss.training.world_rows import (
    DecidedBatches,
    Flags,
    Indices,
    Reals,
)
from solvers.types.policy_spec import EpisodeMeans

_RATE, _TEMPERATURE_RATE = 5e-4, 1e-4
_DISCOUNT = 0.0
_REPLAY_ROUNDS = 10_000
_BATCH = 100
_SOFT_UPDATE = 0.01
_FIRST_TEMPERATURE, _MIN_TEMPERATURE = 1.0, 1e-3
"""The target entropy −log(1 + A) of Table 1 is below every entropy, so that τ falls with every update; to this one."""
_ROUNDS_PER_UPDATE = 8
_SIDE_BY_SIDE, _BY_RULE = 32, 8
"""Courses at a time, and how many of them a simple rule plays; the curve is that of the others."""
_MARGINS = (0.9, 1.3)
"""What the rule wants carried, over the rate; drawn evenly between."""
_FIRST_ROUNDS = 20
"""Rounds with random choices before the first update, which give the scale of rewards."""
_MASKED = -1e9
_COLUMNS = "x allowed slot action reward discount next_x next_allowed next_slot"


class _Network(nn.Module):
    def __init__(self, features: int, slots: int, options: int) -> None:
        super().__init__()
        self._shape = (slots, options)
        self.layers = nn.Sequential(
            nn.Linear(features, HIDDEN[0]),
            nn.ReLU(),
            nn.Linear(HIDDEN[0], HIDDEN[1]),
            nn.ReLU(),
            nn.Linear(HIDDEN[1], slots * options),
        )

    def forward(self, x: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
        """(B, A): the head of each row's slot."""
        heads = self.layers(x).view(-1, *self._shape)
        return heads[torch.arange(len(x)), slot]


class _Replay:
    """The last choices, in a ring."""

    def __init__(self, size: int, features: int, options: int) -> None:
        self.x, self.next_x = (np.zeros((size, features), np.float32) for _ in range(2))
        self.allowed, self.next_allowed = (
            np.zeros((size, options), bool) for _ in range(2)
        )
        self.slot, self.next_slot, self.action = (
            np.zeros(size, np.int64) for _ in range(3)
        )
        self.reward, self.discount = (np.zeros(size, np.float32) for _ in range(2))
        self.filled, self._next = 0, 0

    def add(self, **columns: Reals | Floats | Flags | Indices) -> None:
        """Append rows, over the oldest ones where it is full."""
        count = len(columns["x"])
        at = (self._next + np.arange(count)) % len(self.x)
        for name, values in columns.items():
            getattr(self, name)[at] = values
        self._next = int((self._next + count) % len(self.x))
        self.filled = min(len(self.x), self.filled + count)

    def sample(
        self, random: np.random.Generator, count: int
    ) -> dict[str, torch.Tensor]:
        """Rows drawn evenly."""
        at = random.integers(0, self.filled, count)
        columns = {name: getattr(self, name) for name in _COLUMNS.split()}
        return {name: torch.from_numpy(rows[at]) for name, rows in columns.items()}


class Training:
    """One training run; its state can be saved and taken up again, but for replay and courses, which begin again."""

    def __init__(self, world: ProvisioningWorld, seed: int) -> None:
        torch.manual_seed(seed)
        self._world, self._random = world, np.random.default_rng(seed)
        self._generator = torch.Generator().manual_seed(seed)
        shape = (world.feature_count, world.slots, world.options)
        self._actor = _Network(*shape)
        self._critics = nn.ModuleList(_Network(*shape) for _ in range(2))
        self._targets = nn.ModuleList(_Network(*shape) for _ in range(2))
        self._targets.load_state_dict(self._critics.state_dict())
        self._temperature = torch.tensor(_FIRST_TEMPERATURE, requires_grad=True)
        self._of_actor = torch.optim.Adam(self._actor.parameters(), lr=_RATE)
        self._of_critics = torch.optim.Adam(self._critics.parameters(), lr=_RATE)
        self._of_temperature = torch.optim.Adam(
            [self._temperature], lr=_TEMPERATURE_RATE
        )
        # −log(1 + A) as in Table 1; `_MIN_TEMPERATURE` says what follows from it.
        self._target_entropy = -float(np.log(1.0 + world.options))
        self._replay = _Replay(
            _REPLAY_ROUNDS * world.slots, world.feature_count, world.options
        )
        self._courses = Courses(world, _SIDE_BY_SIDE, seed)
        self._scale: tuple[Reals, float] | None = None
        self.episode = 0

    def run(self, episodes: int) -> Iterator[EpisodeMeans]:
        """Train for `episodes` more, `_SIDE_BY_SIDE` at a time; a point of the curve after each of those."""
        last = self.episode + episodes
        if self._scale is None:
            self._look_around()
        while self.episode < last:
            self._courses.begin()
            points = [self._step() for _ in range(STEPS)]
            self.episode += _SIDE_BY_SIDE
            reward, late, carried, served = np.mean(points, axis=0)
            yield EpisodeMeans(
                episode=self.episode,
                reward=float(reward),
                late_percent=100.0 * float(late),
                carried_rps=float(carried),
                served_rps=float(served),
                temperature=float(self._temperature.detach()),
            )

    def layers(self) -> Layers:
        """The actor's weights as they are now."""
        return tuple(
            parameter.detach().numpy().copy()
            for parameter in self._actor.layers.parameters()
        )

    def save(self) -> bytes:
        """Everything that the next run needs."""
        buffer = io.BytesIO()
        torch.save(
            {
                "actor": self._actor.state_dict(),
                "critics": self._critics.state_dict(),
                "targets": self._targets.state_dict(),
                "temperature": self._temperature.detach(),
                "of_actor": self._of_actor.state_dict(),
                "of_critics": self._of_critics.state_dict(),
                "of_temperature": self._of_temperature.state_dict(),
                "means": torch.from_numpy(
                    self._scale[0] if self._scale else np.zeros(0)
                ),
                "deviation": self._scale[1] if self._scale else 0.0,
                "episode": self.episode,
            },
            buffer,
        )
        return buffer.getvalue()

    def resume(self, saved: bytes) -> None:
        """Go on from what `save` gave. Raises RuntimeError where the world has other sizes."""
        state = torch.load(io.BytesIO(saved), weights_only=True)
        self._actor.load_state_dict(state["actor"])
        self._critics.load_state_dict(state["critics"])
        self._targets.load_state_dict(state["targets"])
        self._of_actor.load_state_dict(state["of_actor"])
        self._of_critics.load_state_dict(state["of_critics"])
        self._of_temperature.load_state_dict(state["of_temperature"])
        with torch.no_grad():
            self._temperature.copy_(state["temperature"])
        self._scale = None
        # A run that was saved before its first round has no scale yet.
        if len(state["means"]):
            self._scale = (state["means"].numpy(), float(state["deviation"]))
        self.episode = int(state["episode"])

    def _look_around(self) -> None:
        """Random rounds: what rewards look like, by slot, so that they can be normalised."""
        found = []
        for _ in range(_FIRST_ROUNDS):
            rounds = self._play(is_random=True)
            found.append(rounds.gains)
            self._go_on(rounds)
        gains = np.concatenate(found)
        # A little more, since the deviation of rewards that never differ is 0.
        self._scale = (gains.mean(axis=0), float(gains.std()) + 1e-6)

    def _go_on(self, played: "_Rounds") -> None:
        raw_rps = self._world.raw_rps(played.decided, played.chosen)
        self._courses.go_on(played.chosen, played.decided, raw_rps)

    def _step(self) -> tuple[float, float, float, float]:
        """One round of all courses, remembered, and the updates that are due."""
        played = self._play(is_random=False)
        rates = self._courses.rates_rps[_BY_RULE:].copy()
        # The courses go on first: what is remembered holds the situation after the round.
        self._go_on(played)
        self._remember(played)
        for _ in range(_SIDE_BY_SIDE // _ROUNDS_PER_UPDATE):
            self._update(self._replay.sample(self._random, _BATCH))
        carried = self._world.carried_of_services(played.decided)[_BY_RULE:]
        late = (late_shares(carried, rates) * rates).sum() / rates.sum()
        served = np.minimum(carried, rates).sum(axis=1).mean()
        reward = played.gains[_BY_RULE:].sum(axis=1).mean()
        total = carried.sum(axis=1).mean()
        return float(reward), float(late), float(total), float(served)

    def _play(self, *, is_random: bool) -> "_Rounds":
        """A round of every course: the slots choose in turn."""
        world = self._world
        courses = self._courses
        count = len(courses.rates_rps)
        chosen = np.full((count, world.slots), world.options - 1, dtype=np.intp)
        seen = np.zeros((world.slots, count, world.feature_count), np.float32)
        allowed = np.zeros((world.slots, count, world.options), bool)
        gains = np.zeros((count, world.slots))
        before = np.zeros(count)
        decided = world.decide(chosen, courses.queued)
        for slot in range(world.slots):
            seen[slot] = world.features(
                chosen, slot, courses.used_mib, courses.rates_rps, courses.queued
            )
            allowed[slot] = world.allowed(chosen, slot, courses.rates_rps)
            chosen[:, slot] = self._choose(
                seen[slot], allowed[slot], slot, is_random=is_random
            )
            if not is_random:
                chosen[:_BY_RULE, slot] = self._follow_rule(
                    chosen[:_BY_RULE], allowed[slot][:_BY_RULE], slot
                )
            # The reward of a choice is what it adds to eq. 3: from one for the whole round no slot learns its part.
            decided = world.decide(chosen, courses.queued)
            after = world.rewards(decided, courses.rates_rps, slot + 1)
            gains[:, slot], before = after - before, after
        return _Rounds(
            chosen=chosen, seen=seen, allowed=allowed, gains=gains, decided=decided
        )

    def _choose(
        self, seen: Floats, allowed: Flags, slot: int, *, is_random: bool
    ) -> Indices:
        if is_random:
            weights = allowed * self._random.random(allowed.shape)
            # Evenly among the allowed ones: each is as likely as the others to have the largest draw.
            return np.asarray(weights.argmax(axis=1))
        with torch.no_grad():
            logits = self._actor(torch.from_numpy(seen), torch.full((len(seen),), slot))
            logits = logits.masked_fill(~torch.from_numpy(allowed), _MASKED)
            drawn = torch.multinomial(
                logits.softmax(dim=1), 1, generator=self._generator
            )
        return np.asarray(drawn[:, 0].numpy().astype(np.intp))

    def _follow_rule(self, chosen: Indices, allowed: Flags, slot: int) -> Indices:
        """The least SM percent that carries the rate with some margin, on any GPU; else what carries most."""
        world = self._world
        count, options = allowed.shape
        trials = np.repeat(chosen, options, axis=0)
        trials[:, slot] = np.tile(np.arange(options), count)
        queued = np.repeat(self._courses.queued[:count], options, axis=0)
        carried = world.decide(trials, queued).carried_rps[:, slot]
        rates = self._courses.rates_rps[:count, world.service_of[slot]]
        room = carried.reshape(count, options) / np.maximum(rates, 1e-9)[:, None]
        is_enough = room >= self._random.uniform(*_MARGINS, (count, 1))
        # Above 100 whatever is enough, the narrower the more, and by chance which GPU; below it what carries most.
        narrow = 1000.0 - world.option_percents + self._random.random((count, options))
        score = np.where(is_enough, narrow, np.minimum(10.0 * room, 100.0))
        return np.asarray(np.where(allowed, score, -1.0).argmax(axis=1))

    def _remember(self, played: "_Rounds") -> None:
        """Every choice with what came next; after the last slot that is the first one of the next round."""
        # `run` looks around first, so that rewards have a scale by now.
        assert self._scale is not None
        world = self._world
        courses = self._courses
        means, deviation = self._scale
        count, slots = played.chosen.shape
        nobody = np.full((count, slots), world.options - 1, dtype=np.intp)
        first = world.features(
            nobody, 0, courses.used_mib, courses.rates_rps, courses.queued
        ).astype(np.float32)
        first_allowed = world.allowed(nobody, 0, courses.rates_rps)
        for slot in range(slots):
            is_last = slot == slots - 1
            self._replay.add(
                x=played.seen[slot],
                allowed=played.allowed[slot],
                slot=np.full(count, slot),
                action=played.chosen[:, slot],
                reward=(played.gains[:, slot] - means[slot]) / deviation,
                next_x=first if is_last else played.seen[slot + 1],
                next_allowed=first_allowed if is_last else played.allowed[slot + 1],
                next_slot=np.full(count, 0 if is_last else slot + 1),
                discount=np.full(count, _DISCOUNT if is_last else 1.0),
            )

    def _update(self, rows: dict[str, torch.Tensor]) -> None:
        """One step of critics, actor and temperature, in the order of Algorithm 2."""
        found = self._update_critics(rows)
        temperature = self._temperature.detach()
        log_policy = self._log_policy(rows["x"], rows["slot"], rows["allowed"])
        policy = log_policy.exp()
        # The clipped double Q of section 5.4: the smaller of both, against overestimation.
        value = torch.minimum(*found).detach()
        _descend(
            self._of_actor,
            (policy * (temperature * log_policy - value)).sum(dim=1).mean(),
        )
        surplus = policy * (log_policy + self._target_entropy)
        _descend(
            self._of_temperature,
            -self._temperature * surplus.sum(dim=1).mean().detach(),
        )
        with torch.no_grad():
            self._temperature.clamp_(min=_MIN_TEMPERATURE)
            for ours, theirs in zip(
                self._targets.parameters(), self._critics.parameters(), strict=True
            ):
                ours.lerp_(theirs, _SOFT_UPDATE)

    def _update_critics(self, rows: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """A step of both, each on its own residual; their values (B, A) before it."""
        target = self._targets_of(rows, self._temperature.detach())
        found = [critic(rows["x"], rows["slot"]) for critic in self._critics]
        actions = rows["action"][:, None]
        residuals = [each.gather(1, actions)[:, 0] - target for each in found]
        losses = [(each**2).mean() / 2.0 for each in residuals]
        _descend(self._of_critics, losses[0] + losses[1])
        return found

    def _targets_of(
        self, rows: dict[str, torch.Tensor], temperature: torch.Tensor
    ) -> torch.Tensor:
        with torch.no_grad():
            log_policy = self._log_policy(
                rows["next_x"], rows["next_slot"], rows["next_allowed"]
            )
            values = torch.minimum(
                *(critic(rows["next_x"], rows["next_slot"]) for critic in self._targets)
            )
            soft = (log_policy.exp() * (values - temperature * log_policy)).sum(dim=1)
            return rows["reward"] + rows["discount"] * soft

    def _log_policy(
        self, x: torch.Tensor, slot: torch.Tensor, allowed: torch.Tensor
    ) -> torch.Tensor:
        """(B, A) logarithms of the policy; those of masked options are 0, so that they count for nothing."""
        logits = self._actor(x, slot).masked_fill(~allowed, _MASKED)
        return logits.log_softmax(dim=1)


def _descend(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rounds:
    """A round of N courses."""

    chosen: Indices
    seen: Floats
    """(J, N, F)."""
    allowed: Flags
    """(J, N, A)."""
    gains: Reals
    """(N, J): what each slot's choice added to the reward."""
    decided: DecidedBatches
