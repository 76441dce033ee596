"""The scheduler of an engine with continuous batching, step by step: what vLLM 0.19 documents, with no network.

    scheduler.add(EngineRequest(id, prompt_tokens, output_tokens))
    step = scheduler.step()                  None: there is nothing to do
    scheduler.finish(step)                   -> (id, whether it is done) of each sequence that got a token

In each step every decoding sequence gets one token first; what the token budget leaves goes to prompts, in chunks,
those that are begun before those that wait. A prompt is admitted only when the cache has room for all of it. Decoding
sequences take blocks as they grow; without a free block the youngest gives back what it has, and is computed again.
Pure: it knows no time. How long a step takes is its caller's matter.
"""

from collections import deque
from dataclasses import dataclass, field

BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSize:
    """What an engine has room for."""

    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    kv_blocks: int = 4096
    """Each of BLOCK_TOKENS tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One request."""

    id: str
    prompt_tokens: int
    output_tokens: int
    """The number with which it ends."""


@dataclass(slots=True, kw_only=True)
class _Sequence:
    request: EngineRequest
    computed: int = 0
    """Tokens whose keys and values are in the cache."""
    generated: int = 0
    reserved: int = 0
    """Blocks that it was admitted with, for all of its prompt."""

    @property
    def known(self) -> int:
        """Tokens that it has: a preempted one computes its own answer again."""
        return self.request.prompt_tokens + self.generated

    @property
    def is_decoding(self) -> bool:
        """Whether its next step is one token."""
        return self.generated > 0 and self.computed == self.known - 1

    @property
    def blocks(self) -> int:
        """That it holds."""
        return max(self.reserved, _blocks(self.computed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one step computes."""

    decoding: tuple[str, ...] = ()
    """Sequences that get one token each."""
    chunks: tuple[tuple[str, int], ...] = ()
    """(sequence, tokens) of prompts, in parts or whole."""
    cached_tokens: int = 0
    """That the decoding sequences attend to."""
    pairs: float = 0.0
    """That the chunks attend: Σ chunk · (cached + chunk / 2)."""

    @property
    def tokens(self) -> int:
        """All that go through the network."""
        return len(self.decoding) + sum(tokens for _, tokens in self.chunks)


@dataclass(slots=True)
class LlmScheduler:
    """One engine's sequences."""

    size: EngineSize = field(default_factory=EngineSize)
    preemptions: int = 0
    _waiting: deque[_Sequence] = field(default_factory=deque)
    _running: list[_Sequence] = field(default_factory=list)
    """In the order of their admission: the youngest last."""
    _known: dict[str, _Sequence] = field(default_factory=dict)

    @property
    def running(self) -> int:
        """Sequences that are admitted."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences that are not."""
        return len(self._waiting)

    @property
    def used_blocks(self) -> int:
        """Blocks of the cache that are taken."""
        return sum(each.blocks for each in self._running)

    def fits(self, request: EngineRequest) -> bool:
        """Whether the request alone has room in the cache."""
        tokens = request.prompt_tokens + request.output_tokens
        return -(-tokens // BLOCK_TOKENS) <= self.size.kv_blocks

    def add(self, request: EngineRequest) -> None:
        """Take a request that fits. Raises ValueError for one that does not, and for an id that is there."""
        if request.id in self._known or not self.fits(request):
            raise ValueError(
                f"request {request.id} is there already, or too long for the cache"
            )
        sequence = _Sequence(request=request)
        self._known[request.id] = sequence
        self._waiting.append(sequence)

    def abort(self, request_id: str) -> None:
        """Forget a request, whatever it is at; nothing where it is over."""
        sequence = self._known.pop(request_id, None)
        if sequence is None:
            return
        # By identity: a preempted one waits, and any other runs.
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)

    def step(self) -> Step | None:
        """What is computed next."""
        decoding = self._decode()
        left = self.size.max_num_batched_tokens - len(decoding)
        free = self.size.kv_blocks - self.used_blocks - _new_blocks(decoding)
        chunks: list[tuple[_Sequence, int]] = []
        for sequence in self._running:
            if left > 0 and not sequence.is_decoding:
                chunk = min(left, sequence.known - sequence.computed)
                chunks.append((sequence, chunk))
                left -= chunk
        while (
            self._waiting and left > 0 and len(self._running) < self.size.max_num_seqs
        ):
            needed = _blocks(self._waiting[0].known)
            # Room for the whole prompt, though only a part of it is computed now.
            if needed > free:
                break
            sequence = self._waiting.popleft()
            sequence.reserved = needed
            self._running.append(sequence)
            chunk = min(left, sequence.known)
            chunks.append((sequence, chunk))
            left -= chunk
            free -= needed
        if not (decoding or chunks):
            return None
        return Step(
            decoding=tuple(each.request.id for each in decoding),
            chunks=tuple((each.request.id, chunk) for each, chunk in chunks),
            cached_tokens=sum(each.known for each in decoding),
            pairs=sum(chunk * (each.computed + chunk / 2.0) for each, chunk in chunks),
        )

    def finish(self, step: Step) -> list[tuple[str, bool]]:
        """The step is over: what got a token, and whether it was the last one. Aborted ones get none."""
        got = []
        for request_id, tokens in (
            *((each, 1) for each in step.decoding),
            *step.chunks,
        ):
            sequence = self._known.get(request_id)
            if sequence is None:
                continue
            sequence.computed += tokens
            # The end of the prompt gives the first token.
            if sequence.computed < sequence.known:
                continue
            sequence.generated += 1
            is_done = sequence.generated >= sequence.request.output_tokens
            got.append((request_id, is_done))
            if is_done:
                self.abort(request_id)
        return got

    def _decode(self) -> list[_Sequence]:
        """The sequences that get a token, for each of which there is a block."""
        while True:
            decoding = [each for each in self._running if each.is_decoding]
            decoding = decoding[: self.size.max_num_batched_tokens]
            if self.used_blocks + _new_blocks(decoding) <= self.size.kv_blocks:
                return decoding
            youngest = self._running.pop()
            youngest.computed = youngest.reserved = 0
            self.preemptions += 1
            self._waiting.appendleft(youngest)


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)


def _new_blocks(decoding: list[_Sequence]) -> int:
    """Blocks that these take with their next token."""
    return sum(max(0, _blocks(each.computed + 1) - each.blocks) for each in decoding)
