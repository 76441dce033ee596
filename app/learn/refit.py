"""Refit: samples → fits and, from them, operating points that may replace those in force.

Fitting takes seconds of CPU, so it runs in a process of its own, which is killed at its time limit.
"""

import asyncio
import math
import multiprocessing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import TypeAlias, TypeVar, cast

import numpy as np

from app.base.errors import InvalidRequest, Unavailable
from app.solver.parent import exit_with_parent
from solvers.predict.data.fit import Coefficients, Fit, Fits, TooFewSamples
from solvers.predict.data.samples import (
    Group,
    LayerCounts,
    Samples,
    make_queries,
    make_samples,
)
from solvers.predict.estimate.operating_points import (
    FitFacts,
    Performance,
    make_grid,
    make_performance,
)
from solvers.predict.estimate.predict import predict_quantity
from solvers.predict.estimate.predict_alone import GPU_TYPE_RATIO, LAYER_COUNTS
from solvers.predict.interference import pressure
from solvers.predict.learn.fit_samples import make_fits
from solvers.types.errors import InvalidInput
from solvers.types.problem import OperatingPoints
from solvers.types.state import GpuType

Request = TypeVar("Request")
Answer = TypeVar("Answer")

PERIOD_S = 60.0
"""How often the leader looks whether samples came in."""
LIMIT_S = 60.0
"""A refit of thousands of samples takes tens of seconds."""
MAX_PROFILED = 12
"""Networks that an estimate asks; more would tell little more and take longer."""
PROFILED_TECHNIQUE = "locally_weighted"
FULL_QUOTA = 100.0
MIN_COMPARED = 3
"""Samples at conditions of its rows, without which nothing is said of a profile's error."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RefitRequest:
    """All that one refit works on."""

    network: str
    samples: Samples
    """Samples of the network, and of others on the same GPU types."""
    is_training: bool = False
    """Whether it is a training network."""
    gpu_types: tuple[GpuType, ...]
    present: tuple[OperatingPoints, ...] = ()
    """The network's profiles in force."""
    other_profiles: tuple[OperatingPoints, ...] = ()
    """Profiles in force of other networks, on all GPU types."""
    fleet: frozenset[str] = frozenset()
    """GPU types of which there are GPUs: there the network is estimated where it was never measured."""
    layers: Mapping[str, LayerCounts] = field(default_factory=dict)
    source: str = ""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RefitCandidate:
    """Operating points that a fit makes, with the error of those in force."""

    performance: Performance
    technique: str
    sample_count: int
    error: float
    """Cross-validated error of the latency fit; infinite = there were too few samples to hold any out."""
    present_error: float | None
    """Mean error of the profile in force on the same samples; None = not known."""
    is_estimated: bool = False
    """The network was never measured on the GPU type."""


GpuTypeProblem: TypeAlias = tuple[str, str]
"""A GPU type, and why there are no operating points for it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RefitAnswer:
    """What one refit made."""

    fits: tuple[Fit, ...]
    """The network's fits, and the interference fits of its GPU types."""
    candidates: tuple[RefitCandidate, ...]
    problems: tuple[GpuTypeProblem, ...] = ()


def run_refit(request: RefitRequest) -> RefitAnswer:
    """Fit, choose, and make operating points for the GPU types on which the network was sampled, or could be estimated.

    Raises InvalidInput for samples that no measurement can be.
    """
    fits = Fits(fits=())
    if len(request.samples):
        fits = make_fits(
            request.samples,
            layers=request.layers,
            seed=request.seed,
            source=request.source,
        )
    kept = tuple(fit for fit in fits.fits if fit.group.network in (request.network, ""))
    candidates, problems = _candidates(request, fits, kept)
    return RefitAnswer(
        fits=kept,
        candidates=tuple(candidates),
        problems=(*problems, *_unfitted(request, candidates, problems)),
    )


def _candidates(
    request: RefitRequest, fits: Fits, own: Sequence[Fit]
) -> tuple[list[RefitCandidate], list[GpuTypeProblem]]:
    types = {gpu_type.name: gpu_type for gpu_type in request.gpu_types}
    fitted = {fit.group.gpu_type: fit for fit in own if fit.quantity == "latency_ms"}
    candidates: list[RefitCandidate] = []
    problems: list[GpuTypeProblem] = []
    for name in sorted({*fitted, *_cold_types(request, fitted)} & types.keys()):
        try:
            # Measured comes before estimated, however few samples there are.
            if name in fitted:
                candidates.append(_candidate(request, fits, fitted[name], types[name]))
            else:
                candidates.append(_estimate(request, fits, types[name]))
        except (TooFewSamples, InvalidInput) as error:
            # One GPU type without points is no reason to keep those of the others back.
            problems.append((name, str(error)))
    return candidates, problems


def _unfitted(
    request: RefitRequest,
    candidates: Sequence[RefitCandidate],
    problems: Sequence[GpuTypeProblem],
) -> Iterator[GpuTypeProblem]:
    """GPU types on which the network was sampled, and of which nothing was said so far."""
    answered = {name for name, _ in problems}
    answered |= {entry.performance.points.gpu_type for entry in candidates}
    sampled = {
        group.gpu_type
        for group in request.samples.at.groups()
        if group.network == request.network
    }
    for name in sorted(sampled - answered):
        yield name, "there are too few samples for any technique"


def _cold_types(request: RefitRequest, fitted: Collection[str]) -> set[str]:
    """GPU types of the fleet on which nothing says how the network runs."""
    return (
        set(request.fleet) - set(fitted) - {entry.gpu_type for entry in request.present}
    )


def _estimate(request: RefitRequest, fits: Fits, gpu_type: GpuType) -> RefitCandidate:
    """Operating points from the network's fits on other GPU types, or from its layers, and what similar networks do."""
    group = Group(request.network, gpu_type.name)
    there = _profiled_on(request, gpu_type)[:MAX_PROFILED]
    known = _with_fits_of(request, fits, {entry.network for entry in there})
    facts = FitFacts(
        gpu_type=gpu_type,
        is_training=request.is_training,
        layers=request.layers,
        other_profiles=there,
    )
    # The estimate's technique follows from what is known: times on another GPU type, or layers alone.
    is_moved = any(
        fit.quantity == "latency_ms" and fit.group.network == request.network
        for fit in fits.fits
    )
    return RefitCandidate(
        performance=make_performance(known, group, make_grid(facts), facts),
        technique=GPU_TYPE_RATIO if is_moved else LAYER_COUNTS,
        sample_count=0,
        # Nothing was held out, so that it is unknown; infinite loses against every measured error.
        error=math.inf,
        present_error=None,
        is_estimated=True,
    )


def _profiled_on(
    request: RefitRequest, gpu_type: GpuType
) -> tuple[OperatingPoints, ...]:
    return tuple(
        entry for entry in request.other_profiles if entry.gpu_type == gpu_type.name
    )


def _with_fits_of(request: RefitRequest, fits: Fits, networks: Set[str]) -> Fits:
    """The fits, and rough ones of other networks where none was made from samples."""
    stated = [entry for entry in request.other_profiles if entry.network in networks]
    own = {(fit.quantity, fit.group) for fit in fits.fits}
    added = (
        fit for fit in _fit_stated(stated).fits if (fit.quantity, fit.group) not in own
    )
    return Fits(fits=(*fits.fits, *added))


def _fit_stated(profiles: Sequence[OperatingPoints]) -> Fits:
    """Latency fits of stated times, alone and at the highest clock; rough, since estimates are so anyway."""
    if not profiles:
        return Fits(fits=())
    rows = []
    for entry in profiles:
        # A lower clock would teach how a network slows down, of which the estimate asks nothing.
        top_mhz = max(row.clock_mhz for row in entry.rows)
        rows += [(entry, row) for row in entry.rows if row.clock_mhz == top_mhz]
    at = make_queries(
        [entry.network for entry, _ in rows],
        [entry.gpu_type for entry, _ in rows],
        batch=[float(row.batch) for _, row in rows],
        sm_percent=[row.sm_percent for _, row in rows],
    )
    return make_fits(
        make_samples(at, [row.solo_ms for _, row in rows]),
        technique=PROFILED_TECHNIQUE,
    )


def _candidate(
    request: RefitRequest, fits: Fits, fit: Fit, gpu_type: GpuType
) -> RefitCandidate:
    present = next(
        (entry for entry in request.present if entry.gpu_type == gpu_type.name), None
    )
    everything = request.samples.take(request.samples.at.groups()[fit.group])
    # A fit through other quotas alone would have to extrapolate to the only one that replicas have.
    if not (everything.at.time_quota_percent == FULL_QUOTA).any():
        raise TooFewSamples(
            "replicas run at full time quota, of which there is no sample"
        )
    own = _alone(everything)
    facts = FitFacts(
        gpu_type=gpu_type,
        is_training=request.is_training,
        present=present,
        # A network that was only ever measured next to neighbours is known where it had neighbours.
        sampled=own.at if len(own) else everything.at,
        neighbours=_neighbours_of(request.samples, fits, gpu_type.name),
        other_profiles=_profiled_on(request, gpu_type),
    )
    return RefitCandidate(
        performance=make_performance(fits, fit.group, make_grid(facts), facts),
        technique=fit.technique,
        sample_count=fit.quality.sample_count,
        error=fit.quality.cross_validated_error,
        present_error=None if present is None else error_of(present, own, gpu_type),
    )


def error_of(
    points: OperatingPoints, samples: Samples, gpu_type: GpuType
) -> float | None:
    """Mean |stated − measured| / measured over samples, alone, at conditions of some row; None: fewer than three.

    Rows state times at full time quota and without a power limit; other samples say nothing of them.
    """
    solo: dict[tuple[float, float, float] | None, float] = {
        row[:3]: row.solo_ms for row in points.rows
    }
    conditions = _plain_conditions(samples, gpu_type.clocks_mhz[-1])
    errors = [
        abs(solo[key] - measured) / measured
        for key, measured in zip(conditions, samples.latency_ms.tolist(), strict=True)
        if key in solo
    ]
    # fsum: the mean must not depend on the order in which samples came in.
    return math.fsum(errors) / len(errors) if len(errors) >= MIN_COMPARED else None


def _plain_conditions(
    samples: Samples, top_mhz: float
) -> Iterator[tuple[float, float, float] | None]:
    """SM percent, batch and clock of each sample at full time quota without a power limit; None of every other."""
    at = samples.at
    is_plain = (at.time_quota_percent == FULL_QUOTA) & np.isnan(at.power_limit_w)
    # A sample that names no clock was taken at the highest one.
    clock_mhz = np.where(np.isnan(at.clock_mhz), top_mhz, at.clock_mhz)
    for key, plain in zip(
        zip(at.sm_percent, at.batch, clock_mhz, strict=True),
        is_plain.tolist(),
        strict=True,
    ):
        yield key if plain else None


def _alone(samples: Samples) -> Samples:
    rows = [
        row for row, neighbours in enumerate(samples.at.neighbours) if not neighbours
    ]
    return samples.take(np.array(rows, dtype=np.intp))


def _neighbours_of(samples: Samples, fits: Fits, gpu_type: str) -> Coefficients | None:
    """The pressure law of a GPU type; None where nothing was sampled next to neighbours there."""
    rows = np.array(
        [row for row, name in enumerate(samples.at.gpu_type) if name == gpu_type],
        dtype=np.intp,
    )
    of_type = samples.take(rows)
    try:
        return pressure.fit(
            of_type, predict_quantity(fits, "latency_ms", of_type.at.alone())
        )
    # No neighbours were measured; the stated interference stays.
    except TooFewSamples:
        return None


async def run_in_process(
    run: Callable[[Request], Answer], request: Request, *, limit_s: float
) -> Answer:
    """`run(request)` in a fresh process; `run` is a function of a module.

    Raises Unavailable at the limit, which kills it, and when it dies; InvalidRequest when it raised InvalidInput.
    """
    process, ours = _start(run)
    try:
        async with asyncio.timeout(limit_s):
            is_done, answer = await asyncio.to_thread(_exchange, ours, request)
    except TimeoutError:
        raise Unavailable(
            f"fitting was stopped after {limit_s:g} s; fit fewer samples"
        ) from None
    except (EOFError, OSError) as error:
        raise Unavailable("the process that fits died; try again") from error
    finally:
        # Also after an answer: it has nothing left to do, and must not outlive its caller.
        process.kill()
        await asyncio.to_thread(process.join, 5.0)
        ours.close()
    if not is_done:
        raise InvalidRequest(str(answer))
    return cast(Answer, answer)


def _start(run: Callable[[Request], Answer]) -> tuple[SpawnProcess, Connection]:
    # Not fork: this process has threads and connections, of which a forked child would inherit halves.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_answer, args=(theirs, run), daemon=True, name="plimsoll-refit"
    )
    process.start()
    theirs.close()
    return process, ours


def _exchange(pipe: Connection, request: Request) -> tuple[bool, object]:
    """Send and receive, in a thread: the pipe takes a long request only once the process has started, in seconds."""
    pipe.send(request)
    said: tuple[bool, object] = pipe.recv()
    return said


def _answer(pipe: Connection, run: Callable[[Request], Answer]) -> None:
    """The process's main. What is not the samples' fault ends it with its traceback; the caller hears of a death."""
    exit_with_parent()
    try:
        pipe.send((True, run(pipe.recv())))
    except InvalidInput as error:
        pipe.send((False, str(error)))
