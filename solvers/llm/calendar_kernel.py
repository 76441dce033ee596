"""One pass of an engine over drawn requests, step by step, in compiled code.

Without preemption each decoding sequence gets exactly one token per step, so that a request whose first token comes in
step k ends in step k + output − 1: a ring of lists over step numbers takes the place of a loop over sequences.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from solvers.compiled import compiler
from solvers.llm.lengths import Counts
from solvers.llm.step_law import Reals

compiled = compiler([Path(__file__)])

BINS_PER_E = 200.0
"""Bins of the histogram of token times per factor e: each is half a per cent wide."""
LOWEST_MS = 0.01
BINS = 4000  # Up to 0.01 ms · e^20, some weeks.


class Load(NamedTuple):
    """Requests in the order of their arrivals."""

    arrival_ms: Reals
    """(R,) ascending."""
    prompt: Counts
    found: Counts
    """(R,) tokens of the prompt that the cache has already, fewer than it has."""
    output: Counts


class EngineNumbers(NamedTuple):
    """The engine's rules and its step law."""

    budget: int
    places: int
    kv_tokens: float
    step_ms: Reals
    """By tokens of the step, from 0 on: a look-up takes a tenth of an interpolation."""
    sequence_ms: float
    cached_token_ms: float
    pair_ms: float
    prompt_step_ms: float


class Passed(NamedTuple):
    """What became of the requests."""

    ttft_ms: Reals
    """(R,) from arrival to the end of the step that made the first token; infinite where it never had room."""
    decode_ms: Reals
    """(R,) from there to the last token."""
    token_ms: Reals
    """(BINS,) tokens after the first of their request, by the time since the one before."""


class _Course(NamedTuple):
    """Where the pass stands. Arrays of one place are its scalars, since kernels cannot change a tuple's fields."""

    now_ms: Reals
    cached: Reals
    """(1,) tokens of decoding sequences in the cache."""
    reserved: Reals
    """(1,) tokens of prompts that are being read."""
    step: Counts
    decoding: Counts
    taken: Counts
    """(1,) requests that were admitted."""
    read: Counts
    """(1,) requests whose prompts were read."""
    read_of_next: Counts
    """(1,) tokens that were read of the prompt after them."""
    first_ms: Reals
    ends: Counts
    """(ring,) the first request that ends in a step, by the step's number; −1: none. A power of two."""
    following: Counts
    """(R,) the next request that ends in the same step."""
    passed: Passed


@compiled
def run_calendar(engine: EngineNumbers, load: Load) -> Passed:
    """Serve all requests of a load, first come, first served."""
    course = _begin(load)
    count = load.prompt.shape[0]
    while course.read[0] < count or course.decoding[0] > 0:
        before = course.read[0]
        chunk, pairs = _read_prompts(engine, load, course)
        if chunk > 0 or course.decoding[0] > 0:
            if chunk == 0 and _pass_quiet_steps(engine, load, course):
                continue
            _pass_step(engine, load, course, chunk, pairs)
            _begin_answers(load, course, before)
        elif _next_ms(load, course) > course.now_ms[0]:
            # No sequence is there: the engine sleeps until the next request.
            course.now_ms[0] = _next_ms(load, course)
        else:
            # What waits has no room even in an empty engine.
            break
    return course.passed


@compiled
def _begin(load: Load) -> _Course:
    count = load.prompt.shape[0]
    ring = 1
    # A power of two, so that a mask takes the place of a division in the innermost loop.
    while ring <= load.output.max() + 1:
        ring *= 2
    none = np.zeros(1, dtype=np.int64)
    return _Course(
        np.zeros(1),
        np.zeros(1),
        np.zeros(1),
        none.copy(),
        none.copy(),
        none.copy(),
        none.copy(),
        none.copy(),
        np.zeros(count),
        np.full(ring, -1, dtype=np.int64),
        np.full(count, -1, dtype=np.int64),
        Passed(np.full(count, np.inf), np.zeros(count), np.zeros(BINS)),
    )


@compiled
def _next_ms(load: Load, course: _Course) -> float:
    """When the next request arrives that was not admitted yet; 0 where there is none."""
    at = course.taken[0]
    if at == load.arrival_ms.shape[0]:
        return 0.0
    return float(load.arrival_ms[at])


@compiled
def _read_prompts(
    engine: EngineNumbers, load: Load, course: _Course
) -> tuple[int, float]:
    """Tokens of prompts that the step has room for besides those that decode, and their attended pairs."""
    # Who decodes goes first: the rest of the budget is for prompts.
    room, pairs = engine.budget - course.decoding[0], 0.0
    before = course.read[0]
    chunk = 0
    while room > 0:
        at = course.read[0]
        if at == course.taken[0] and not _admit(engine, load, course, at - before):
            break
        done = max(course.read_of_next[0], load.found[at])
        part = min(room, load.prompt[at] - done)
        # Each token of the part attends to all before it, and to half of the part on average.
        pairs += part * (done + 0.5 * part)
        room -= part
        chunk += part
        course.read_of_next[0] = done + part
        if done + part < load.prompt[at]:
            break
        course.read[0] += 1
        course.read_of_next[0] = 0
    return chunk, pairs


@compiled
def _admit(engine: EngineNumbers, load: Load, course: _Course, beginning: int) -> bool:
    """Admit the request that has waited longest, where there is one and it has room."""
    at = course.taken[0]
    if at == load.prompt.shape[0] or load.arrival_ms[at] > course.now_ms[0]:
        return False
    if course.decoding[0] + beginning >= engine.places:
        return False
    needed = course.cached[0] + course.reserved[0] + load.prompt[at]
    # vLLM admits a prompt only where the cache has room for all of it.
    if needed > engine.kv_tokens:
        return False
    course.reserved[0] += load.prompt[at]
    course.taken[0] += 1
    return True


@compiled
def _pass_quiet_steps(engine: EngineNumbers, load: Load, course: _Course) -> bool:
    """Let the steps pass that are like each other but for what is cached, until a request comes (True) or an answer
    ends in the next step.

    Nearly all steps are of this kind. In local variables, they take a twentieth of the time of the others.
    """
    now, cached = course.now_ms[0], course.cached[0]
    step, decoding = course.step[0], course.decoding[0]
    mask = course.ends.shape[0] - 1
    # Who has arrived already waits for room, which no quiet step makes.
    until = _next_ms(load, course)
    if until <= now:
        until = np.inf
    base = engine.step_ms[decoding] + engine.sequence_ms * decoding
    place, edge = 0, 0.0
    while now < until and course.ends[step & mask] < 0:
        length = base + engine.cached_token_ms * cached
        # Steps only get longer here, so that their bin is looked up when they leave it.
        if length > edge:
            place = _place(length)
            edge = LOWEST_MS * np.exp((place + 1) / BINS_PER_E)
        course.passed.token_ms[place] += decoding
        now += length
        cached += decoding
        step += 1
    course.now_ms[0], course.cached[0], course.step[0] = now, cached, step
    return bool(now >= until)


@compiled
def _place(length_ms: float) -> int:
    """The bin of a step's length."""
    place = int(np.log(length_ms / LOWEST_MS) * BINS_PER_E)
    return min(max(place, 0), BINS - 1)


@compiled
def _pass_step(
    engine: EngineNumbers, load: Load, course: _Course, chunk: int, pairs: float
) -> None:
    """Let the time of one step pass, in which every decoding sequence gets a token."""
    decoding = course.decoding[0]
    length = engine.step_ms[decoding + chunk] + engine.pair_ms * pairs
    length += engine.sequence_ms * decoding + engine.cached_token_ms * course.cached[0]
    if chunk > 0:
        length += engine.prompt_step_ms
    course.now_ms[0] += length
    if decoding > 0:
        course.passed.token_ms[_place(length)] += decoding
    course.cached[0] += decoding
    _end_answers(load, course)


@compiled
def _end_answers(load: Load, course: _Course) -> None:
    """Take out the sequences whose last token the step has made."""
    place = course.step[0] & (course.ends.shape[0] - 1)
    at = course.ends[place]
    # The place is used again by the step that comes a whole ring later.
    course.ends[place] = -1
    while at >= 0:
        course.decoding[0] -= 1
        course.cached[0] -= load.prompt[at] + load.output[at]
        course.passed.decode_ms[at] = course.now_ms[0] - course.first_ms[at]
        at = course.following[at]


@compiled
def _begin_answers(load: Load, course: _Course, before: int) -> None:
    """The first tokens of the prompts that the step has read to their ends."""
    now = course.now_ms[0]
    for request in range(before, course.read[0]):
        course.passed.ttft_ms[request] = now - load.arrival_ms[request]
        course.first_ms[request] = now
        # From now on its tokens are counted among those of decoding sequences.
        course.reserved[0] -= load.prompt[request]
        if load.output[request] > 1:
            _let_decode(load, course, request)
    course.step[0] += 1


@compiled
def _let_decode(load: Load, course: _Course, request: int) -> None:
    """Put a sequence into the list of those that end with it; without preemption its last step is known now."""
    course.decoding[0] += 1
    course.cached[0] += load.prompt[request] + 1
    end = course.step[0] + load.output[request] - 1
    place = end & (course.ends.shape[0] - 1)
    course.following[request] = course.ends[place]
    course.ends[place] = request
