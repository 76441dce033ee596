"""Runs of language models' servers, as somebody measured them."""

from dataclasses import dataclass

from solvers.llm.architecture import Precision
from solvers.llm.closed_loop import DEFAULT_BUDGET
from solvers.llm.step_law import LlmEngine, Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConditions:
    """What a closed-loop run of a server was measured under."""

    network: str
    runtime: Runtime
    gpu_type: str
    precision: Precision
    tp: int
    clients: float
    prompt: float
    """Mean tokens."""
    output: float
    """Mean tokens."""
    budget: float = DEFAULT_BUDGET
    """Tokens of one step at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A run of a server with the time between tokens that it had on average."""

    engine: LlmEngine
    conditions: RunConditions
    tpot_ms: float
