"""Whether language models' rows carry what they state, by an engine of the checker's own.

It goes through every sequence of every step and knows no calendar: slow, and with nothing to get wrong. Each row that a
plan uses is given the requests of its service at a rate that is `TOLERANCE` below its stated capacity; where these miss
the SLO, the capacity is overstated.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from solvers.check_base import broken
from solvers.check_llm import LlmRows
from solvers.types.llm import LengthPairs, LlmDemand, LlmRow, StepLaw
from solvers.types.outcome import Violation
from solvers.types.plan import Plan
from solvers.types.problem import Problem

TOLERANCE = 0.05
"""A stated capacity may exceed the audited one by this share of it: both know it from some thousand requests."""
REQUESTS = 8_000
_SEED = 11
_Times = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


class Audit(NamedTuple):
    """What became of a plan's rows."""

    audited: int
    """Rows that were looked at."""
    unknown: tuple[str, ...]
    """What could not be, in words, as the problem has no step law or no lengths for it."""
    violations: tuple[Violation, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AuditLoad:
    """(R,) requests in the order of their arrivals."""

    arrival_ms: _Times
    prompt: tuple[int, ...]
    output: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answers:
    """What became of them."""

    ttft_ms: _Times
    """(R,) in the engine; infinite where a prompt never had room."""
    decode_ms: _Times
    """(R,) from the first token to the last."""
    token_ms: dict[float, int]
    """Tokens after the first of their request, by the time since the one before."""


def audit(problem: Problem, plan: Plan) -> Audit:
    """Look at each row that the plan uses. Some seconds per row."""
    services = {service.name: service for service in problem.llm_services}
    laws = {(each.network, each.gpu_type, each.tp): each for each in problem.step_laws}
    lengths = {each.name: each for each in problem.length_tables}
    audited, unknown = 0, list[str]()
    violations: list[Violation] = []
    for name, gpu_type, row in _used_rows(problem, plan):
        law = laws.get((services[name].network, gpu_type, row.tp))
        pairs = lengths.get(services[name].lengths)
        where = f"{name} on {row.tp} × {gpu_type}"
        if law is not None and pairs is not None:
            audited += 1
            violations += _judge(services[name], law, pairs, row, where)
        else:
            lacking = "step_laws" if law is None else "length_tables"
            unknown.append(f"{where}: nothing in {lacking}")
    return Audit(audited, tuple(unknown), tuple(violations))


def _used_rows(problem: Problem, plan: Plan) -> Iterator[tuple[str, str, LlmRow]]:
    """Service, GPU type and row, each once; what has no row breaks a rule of its own."""
    rows, seen = LlmRows(problem), set()
    for replica in plan.llm_replicas:
        row = rows.find(replica)
        if row is not None and (replica.service, replica.gpu_type, row) not in seen:
            seen.add((replica.service, replica.gpu_type, row))
            yield replica.service, replica.gpu_type, row


def _judge(
    service: LlmDemand, law: StepLaw, pairs: LengthPairs, row: LlmRow, where: str
) -> Iterator[Violation]:
    # Shares in time fall with the rate: one rate says which side of it the capacity is on.
    rate_rps = row.capacity_rps / (1.0 + TOLERANCE)
    if rate_rps <= 0.0:
        return
    load = draw(pairs, rate_rps, service.arrival_cv)
    engine = PlainEngine(
        law=law,
        budget=row.max_num_batched_tokens,
        places=row.max_num_seqs,
        load=load,
    )
    kept = shares_kept(service, law, load, engine.run())
    for name, share in kept.items():
        if share < service.slo.percentile:
            message = (
                f"{row.capacity_rps:g} rps are stated; at {rate_rps:.3g} only {100 * share:.1f} % of "
                f"{100 * service.slo.percentile:g} % keep {name}"
            )
            yield broken("law", where, message)


def draw(pairs: LengthPairs, rate_rps: float, cv: float) -> AuditLoad:
    """Requests of these lengths at random, with gamma distributed gaps."""
    generator = np.random.default_rng(_SEED)
    shape = 1.0 / cv**2
    gaps_ms = generator.gamma(shape, 1000.0 / rate_rps / shape, size=REQUESTS)
    # Another order than that of the table, and each pair as often as any other.
    at = np.concatenate(
        [
            generator.permutation(len(pairs.input_tokens))
            for _ in range(-(-REQUESTS // len(pairs.input_tokens)))
        ]
    )[:REQUESTS]
    return AuditLoad(
        arrival_ms=np.cumsum(gaps_ms),
        prompt=tuple(pairs.input_tokens[each] for each in at),
        output=tuple(pairs.output_tokens[each] for each in at),
    )


def shares_kept(
    service: LlmDemand, law: StepLaw, load: AuditLoad, answers: Answers
) -> dict[str, float]:
    """The shares within each SLO, 0 to 1, by its name."""
    slo = service.slo
    prompt = np.array(load.prompt)
    # Clients see the way into the engine and back as well.
    way_ms = law.request_ms + law.per_1000_prompt_tokens_ms * prompt / 1000.0
    way_ms = way_ms + law.request_steps * _mean_step_ms(answers)
    ttft = float(np.mean(answers.ttft_ms + way_ms <= slo.ttft_ms))
    if slo.itl == "token":
        return {"ttft": ttft, "itl": _tokens_within(answers, slo.itl_ms)}
    # An answer of one token has no time between tokens, and is in time.
    gaps = np.maximum(1, np.array(load.output) - 1)
    return {
        "ttft": ttft,
        "itl": float(np.mean(answers.decode_ms <= slo.itl_ms * gaps)),
    }


def _mean_step_ms(answers: Answers) -> float:
    """As decoding sequences see it; 0 where answers have one token."""
    total = sum(answers.token_ms.values())
    passed_ms = sum(ms * n for ms, n in answers.token_ms.items())
    return passed_ms / total if total else 0.0


def _tokens_within(answers: Answers, limit_ms: float) -> float:
    total = sum(answers.token_ms.values())
    late = sum(n for ms, n in answers.token_ms.items() if ms > limit_ms)
    return 1.0 - late / total if total else 1.0


@dataclass(kw_only=True)
class PlainEngine:
    """An engine with continuous batching and chunked prompts that serves one load, sequence by sequence."""

    law: StepLaw
    budget: int
    """Tokens of a step at most."""
    places: int
    """Sequences at a time at most."""
    load: AuditLoad
    answers: Answers = field(init=False)
    _now_ms: float = 0.0
    _coming: deque[int] = field(init=False)
    _reading: int | None = None
    """The request whose prompt is read in parts."""
    _read: int = 0
    """Tokens of it that were read."""
    _done: list[int] = field(default_factory=list)
    """Requests whose prompts end in the step."""
    _left: dict[int, int] = field(default_factory=dict)
    """Tokens that decoding sequences still make, by request."""
    _cached: int = 0
    """Tokens of decoding sequences in the cache."""

    def __post_init__(self) -> None:
        count = len(self.load.prompt)
        self._coming = deque(range(count))
        self.answers = Answers(
            ttft_ms=np.full(count, np.inf),
            decode_ms=np.full(count, np.inf),
            token_ms={},
        )

    def run(self) -> Answers:
        """Serve all requests, first come, first served."""
        while self._coming or self._reading is not None or self._left:
            tokens, pairs = self._read_prompts()
            if tokens or self._left:
                self._step(tokens, pairs)
                continue
            next_ms = float(self.load.arrival_ms[self._coming[0]])
            # What waits has no room even in an empty engine.
            if next_ms <= self._now_ms:
                break
            self._now_ms = next_ms
        return self.answers

    def _read_prompts(self) -> tuple[int, float]:
        """Tokens of prompts in the step, and their attended pairs."""
        # Who decodes goes first.
        room, pairs = self.budget - len(self._left), 0.0
        tokens = 0
        while room > 0 and (self._reading is not None or self._admit()):
            assert self._reading is not None
            length = self.load.prompt[self._reading]
            part = min(room, length - self._read)
            pairs += part * (self._read + part / 2.0)
            room, tokens, self._read = room - part, tokens + part, self._read + part
            if self._read == length:
                self._done.append(self._reading)
                self._reading = None
        return tokens, pairs

    def _admit(self) -> bool:
        """Begin with the request that has waited longest, where there is one and it has room."""
        if not self._coming or self.load.arrival_ms[self._coming[0]] > self._now_ms:
            return False
        # Room for all of the prompt, though only a part of it is read now.
        needed = self._cached + self.load.prompt[self._coming[0]]
        needed += sum(self.load.prompt[each] for each in self._done)
        running = len(self._left) + len(self._done)
        if running >= self.places or needed > self.law.kv_tokens:
            return False
        self._reading, self._read = self._coming.popleft(), 0
        return True

    def _step(self, tokens: int, pairs: float) -> None:
        """Let one step pass: a token for each decoding sequence, and the first one of prompts that end."""
        step_ms = self._step_ms(tokens, pairs)
        self._now_ms += step_ms
        times = self.answers.token_ms
        times[step_ms] = times.get(step_ms, 0) + len(self._left)
        # Before those that begin to decode: their first token is that of their prompt's end.
        self._decode()
        for request in self._done:
            arrival_ms = float(self.load.arrival_ms[request])
            self.answers.ttft_ms[request] = self._now_ms - arrival_ms
            self.answers.decode_ms[request] = 0.0
            if self.load.output[request] > 1:
                self._left[request] = self.load.output[request] - 1
                self._cached += self.load.prompt[request] + 1
        self._done = []

    def _step_ms(self, tokens: int, pairs: float) -> float:
        law, decoding = self.law, len(self._left)
        length = float(np.interp(tokens + decoding, law.tokens, law.step_ms))
        length += law.per_sequence_ms * decoding
        length += law.per_cached_token_ms * self._cached
        length += law.per_attended_pair_ms * pairs
        return length + (law.prompt_step_ms if tokens else 0.0)

    def _decode(self) -> None:
        self._cached += len(self._left)
        for request, left in tuple(self._left.items()):
            self._left[request] = left - 1
            if left == 1:
                del self._left[request]
                self._cached -= self.load.prompt[request] + self.load.output[request]
                first_ms = self.load.arrival_ms[request] + self.answers.ttft_ms[request]
                self.answers.decode_ms[request] = self._now_ms - first_ms
