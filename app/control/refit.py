"""Refit: samples → fits and, from them, operating points that may replace those in force.

Fitting takes seconds of CPU, so it runs in a process of its own, which is killed at its time limit.
"""

import asyncio
import math
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TypeVar

import numpy as np

from app.errors import InvalidRequest, Unavailable
from solvers.errors import InvalidInput
from solvers.predict.fit import Coefficients, Fit, TooFewSamples
from solvers.predict.fits import Fits
from solvers.predict.fitting import make_fits
from solvers.predict.interference import pressure
from solvers.predict.operating_points import Facts, make_grid, make_performance
from solvers.predict.performance import Performance
from solvers.predict.predicting import predict_quantity
from solvers.predict.samples import Group, Samples
from solvers.problem import OperatingPoints
from solvers.state import GpuType

Request = TypeVar("Request")
Answer = TypeVar("Answer")

PERIOD_S = 60.0
"""How often the leader looks whether samples came in."""
LIMIT_S = 60.0
"""A refit of thousands of samples takes tens of seconds."""
FEWEST_COMPARED = 3
"""Samples at conditions of its rows, without which nothing is said of a profile's error."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RefitRequest:
    """All that one refit works on."""

    network: str
    samples: Samples
    """Of the network, and of others on the same GPU types."""
    gpu_types: tuple[GpuType, ...]
    present: tuple[OperatingPoints, ...] = ()
    """The network's profiles in force."""
    source: str = ""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Operating points that a fit makes, beside the error of those in force."""

    performance: Performance
    technique: str
    sample_count: int
    error: float
    """Cross-validated error of the latency fit; infinite = there were too few samples to hold any out."""
    present_error: float | None
    """Mean error of the profile in force on the same samples; None = not known."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RefitAnswer:
    """What one refit made."""

    fits: tuple[Fit, ...]
    """Of the network, and the interference fits of its GPU types."""
    candidates: tuple[Candidate, ...]
    problems: tuple[tuple[str, str], ...] = ()
    """(GPU type, why there are no operating points for it)."""


def run_refit(request: RefitRequest) -> RefitAnswer:
    """Fit, choose, and make operating points for every GPU type on which the network was sampled.

    Raises InvalidInput for samples that no measurement can be.
    """
    fits = make_fits(request.samples, seed=request.seed, source=request.source)
    types = {gpu_type.name: gpu_type for gpu_type in request.gpu_types}
    kept = tuple(fit for fit in fits.fits if fit.group.network in (request.network, ""))
    candidates, problems = [], []
    for fit in kept:
        if fit.quantity == "latency_ms" and fit.group.gpu_type in types:
            try:
                candidates.append(_candidate(request, fits, fit, types[fit.group.gpu_type]))
            except (TooFewSamples, InvalidInput) as error:
                problems.append((fit.group.gpu_type, str(error)))
    fitted = {fit.group.gpu_type for fit in kept if fit.quantity == "latency_ms"}
    sampled = {group.gpu_type for group in request.samples.at.groups() if group.network == request.network}
    problems += [(name, "there are too few samples for any technique") for name in sorted(sampled - fitted)]
    return RefitAnswer(fits=kept, candidates=tuple(candidates), problems=tuple(problems))


def _candidate(request: RefitRequest, fits: Fits, fit: Fit, gpu_type: GpuType) -> Candidate:
    present = next((entry for entry in request.present if entry.gpu_type == gpu_type.name), None)
    own = _alone(request.samples, fit.group)
    facts = Facts(
        gpu_type=gpu_type, present=present, sampled=own.at, company=_company(request.samples, fits, gpu_type.name)
    )
    return Candidate(
        performance=make_performance(fits, fit.group, make_grid(facts), facts),
        technique=fit.technique,
        sample_count=fit.quality.sample_count,
        error=fit.quality.cross_validated_error,
        present_error=None if present is None else error_of(present, own, gpu_type),
    )


def error_of(points: OperatingPoints, samples: Samples, gpu_type: GpuType) -> float | None:
    """Mean |stated − measured| / measured over samples, alone, at conditions of some row; None: fewer than three."""
    solo = {row[:3]: row.solo_ms for row in points.rows}
    top = gpu_type.clocks_mhz[-1]
    at = samples.at
    conditions = zip(at.sm_percent, at.batch, np.where(np.isnan(at.clock_mhz), top, at.clock_mhz), strict=True)
    errors = [
        abs(solo[key] - measured) / measured
        for key, measured in zip(conditions, samples.latency_ms.tolist(), strict=True)
        if key in solo
    ]
    return math.fsum(errors) / len(errors) if len(errors) >= FEWEST_COMPARED else None


def _alone(samples: Samples, group: Group) -> Samples:
    rows = samples.at.groups()[group]
    return samples.take(np.array([row for row in rows if not samples.at.neighbours[row]], dtype=np.intp))


def _company(samples: Samples, fits: Fits, gpu_type: str) -> Coefficients | None:
    """The pressure law of a GPU type; None where nothing was sampled in company there."""
    rows = np.array([row for row, name in enumerate(samples.at.gpu_type) if name == gpu_type], dtype=np.intp)
    of_type = samples.take(rows)
    try:
        return pressure.fit(of_type, predict_quantity(fits, "latency_ms", of_type.at.alone()))
    except TooFewSamples:
        return None


async def run_in_process(run: Callable[[Request], Answer], request: Request, *, limit_s: float) -> Answer:
    """`run(request)` in a fresh process; `run` is a function of a module.

    Raises Unavailable at the limit, which kills it, and when it dies; InvalidRequest when it raised InvalidInput.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_answer, args=(theirs, run, request), daemon=True, name="plimsoll-refit")
    process.start()
    theirs.close()
    try:
        async with asyncio.timeout(limit_s):
            is_done, answer = await asyncio.to_thread(ours.recv)
    except TimeoutError:
        raise Unavailable(f"fitting was ended after {limit_s:g} s; fit fewer samples") from None
    except (EOFError, OSError) as error:
        raise Unavailable("the process that fits died; try again") from error
    finally:
        process.kill()
        process.join(timeout=5.0)
        ours.close()
    if not is_done:
        raise InvalidRequest(str(answer))
    result: Answer = answer
    return result


def _answer(pipe: Connection, run: Callable[[Request], Answer], request: Request) -> None:
    """The process's main. What is not the samples' fault ends it with its traceback; the caller hears of a death."""
    try:
        pipe.send((True, run(request)))
    except InvalidInput as error:
        pipe.send((False, str(error)))
