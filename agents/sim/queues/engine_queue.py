"""One replica of a language model in trace time: its engine's steps one after the other, and what its requests get.

Continuous batching, chunks of prompts, blocks of the cache and preemption are those of `agents.llm.scheduler`, which
the stand-in engine runs in real time. The cut of the time axis into windows changes nothing.
"""

from dataclasses import dataclass

from agents.base.protocol import TokenCounts
from agents.llm.scheduler import EngineRequest, EngineSize, LlmScheduler, Step
from agents.sim.queues.replica_queue import fine_bucket_of_s
from agents.sim.queues.tally import (
    IN_SLO,
    PRESENT_S,
    SERVED,
    SOJOURN_S,
    ServiceTally,
)
from agents.sim.truth.llm_steps import EngineTimes

_NO_TOKENS = TokenCounts(0, 0, 0)
MAX_PRESENT = 512
"""Requests that one replica has at most, waiting ones included, as replicas of other networks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLimits:
    """Within what answers are in time."""

    ttft_s: float
    itl_s: float
    """The mean from one token to the next, as routers judge streams."""


@dataclass(slots=True, kw_only=True)
class _Answer:
    """A request and how far its answer is."""

    since_s: float
    prompt_tokens: int
    first_s: float = 0.0
    tokens: int = 0


class EngineQueue:
    """The engine of one replica and its requests."""

    def __init__(
        self, truth: EngineTimes, size: EngineSize, limits: TokenLimits
    ) -> None:
        self._truth, self._size, self._limits = truth, size, limits
        self._scheduler = LlmScheduler(size)
        self._answers: dict[str, _Answer] = {}
        self._step: Step | None = None
        self._begun_s = self._ends_s = 0.0
        self._counted_to_s = 0.0
        """Up to then the window's sums are complete."""
        self._requests = 0
        self.slowdown = 1.0
        """Factor on every step; above 1 on a straggler."""
        self.batches = 0
        """Tokens of the window that followed another one, as engines count them."""
        self.requests = 0
        self.execution_s = 0.0
        """Summed time from one token to the next."""
        self.busy_s = 0.0
        self.tokens = _NO_TOKENS
        """What the window's requests had that ended."""

    @property
    def in_flight(self) -> int:
        """Requests that wait or run."""
        return len(self._answers)

    @property
    def energy_j(self) -> float:
        """Energy of the window above idle, of each of its GPUs."""
        return self.busy_s * self._truth.busy_w

    def begin(self, start_s: float) -> None:
        """A window begins."""
        self._counted_to_s = start_s

    def offer(
        self,
        lengths: tuple[int, int],
        times_s: tuple[float, float],
        tally: ServiceTally,
    ) -> None:
        """Take a request, up to whose moment the engine was advanced; refused where it has no room for it.

        `lengths`: tokens of prompt and answer; `times_s`: when it reaches the replica, and since when it is under way.
        """
        now_s, since_s = times_s
        self._requests += 1
        request = EngineRequest(
            id=str(self._requests), prompt_tokens=lengths[0], output_tokens=lengths[1]
        )
        if self.in_flight >= MAX_PRESENT or not self._scheduler.fits(request):
            tally.reject(1, after_s=now_s - since_s)
            return
        self._count(now_s, tally)
        self._scheduler.add(request)
        self._answers[request.id] = _Answer(since_s=since_s, prompt_tokens=lengths[0])
        if self._step is None:
            self._start_step(now_s)

    def advance(self, until_s: float, tally: ServiceTally) -> None:
        """Do every step that ends by then."""
        while self._step is not None and self._ends_s <= until_s:
            self._end_step(self._step, tally)
            self._start_step(self._ends_s)

    def end(self, end_s: float, tally: ServiceTally) -> None:
        """The window ends then."""
        self.advance(end_s, tally)
        self._count(end_s, tally)

    def age_s(self, now_s: float) -> float:
        """Summed time since the arrival of all that waits or runs."""
        return sum(now_s - each.since_s for each in self._answers.values())

    def count_older(self, before_s: float) -> int:
        """Requests without a token that arrived before a moment."""
        return sum(
            not each.tokens and each.since_s < before_s
            for each in self._answers.values()
        )

    def drop(self) -> int:
        """Lose everything that waits or runs; returns how many requests that were."""
        lost = self.in_flight
        self._answers.clear()
        self._scheduler = LlmScheduler(self._size)
        self._step = None
        return lost

    def new_window(self) -> None:
        """Start counting work again."""
        self.batches = self.requests = 0
        self.execution_s = self.busy_s = 0.0
        self.tokens = _NO_TOKENS

    def _start_step(self, now_s: float) -> None:
        self._step = self._scheduler.step()
        if self._step is not None:
            self._begun_s = now_s
            self._ends_s = now_s + self._truth.step_s(self._step) * self.slowdown

    def _end_step(self, step: Step, tally: ServiceTally) -> None:
        now_s = self._ends_s
        self._count(now_s, tally)
        decoding = len(step.decoding)
        self.batches += decoding
        self.execution_s += decoding * (now_s - self._begun_s)
        for request_id, is_done in self._scheduler.finish(step):
            answer = self._answers[request_id]
            answer.tokens += 1
            if answer.tokens == 1:
                answer.first_s = now_s
            if is_done:
                del self._answers[request_id]
                self._finish(answer, now_s, tally)

    def _finish(self, answer: _Answer, now_s: float, tally: ServiceTally) -> None:
        self.requests += 1
        ttft_s = answer.first_s - answer.since_s
        # An answer of one token has no time between tokens.
        itl_s = (now_s - answer.first_s) / max(1, answer.tokens - 1)
        limits = self._limits
        tally.counts[SERVED] += 1
        tally.counts[IN_SLO] += ttft_s <= limits.ttft_s and itl_s <= limits.itl_s
        tally.fine[fine_bucket_of_s(ttft_s)] += 1
        tally.sums[SOJOURN_S] += now_s - answer.since_s
        tally.output_tokens += answer.tokens
        # No cache of prefixes is simulated.
        self.tokens = TokenCounts(
            prompts=self.tokens.prompts + answer.prompt_tokens,
            found=0,
            answers=self.tokens.answers + answer.tokens,
        )

    def _count(self, now_s: float, tally: ServiceTally) -> None:
        """Sum up to now, before something changes."""
        passed_s = now_s - self._counted_to_s
        tally.sums[PRESENT_S] += self.in_flight * passed_s
        self.busy_s += passed_s * (self._step is not None)
        self._counted_to_s = now_s
