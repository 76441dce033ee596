"""Refits: load what one works on, keep what it made, and put in force the operating points that are judged better."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from app.base.errors import InvalidRequest
from app.db.base.transaction import Engine, lock_object, transaction
from app.db.decisions import policies
from app.db.fleet import gpu_types, nodes
from app.db.operations import events
from app.db.predictions import fits, health, profiles, samples
from app.db.predictions.fits import FitRow
from app.db.predictions.profiles import ProfileOrigin, StoredProfile
from app.learn.refit import RefitAnswer, RefitCandidate, RefitRequest
from app.learn.verdicts import ProfileInForce, RefitVerdict, error_bar, judge
from app.store.store import AuditEvent
from solvers.predict.data.samples import LayerCounts
from solvers.types.state import Mode

MAX_OWN, MAX_OTHERS = 4000, 2000
"""Newest samples that one refit works on: a few seconds for one network with all techniques."""
RETRY_AFTER = timedelta(minutes=15)
"""A refit that was killed at its limit, or that failed, is tried again after so long."""
ACTOR = "controller"

Run = Callable[[RefitRequest], Awaitable[RefitAnswer]]
Layers = Mapping[str, LayerCounts]
"""By network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefitOutcome:
    """What one refit changed."""

    fits: tuple[FitRow, ...]
    """In force now, of the network."""
    verdicts: tuple[RefitVerdict, ...]


async def refit(
    engine: Engine,
    run: Run,
    network: str,
    *,
    layers: Layers,
    actor: str,
    now: Callable[[], datetime],
    apply: bool,
) -> RefitOutcome:
    """Fit a network's samples again, keep the fits, and make a new profile version where that is better and wanted.

    Raises NotFound, and InvalidRequest when nothing is known of it.
    """
    at = now()
    # No transaction is open while the fit runs, which takes seconds.
    async with transaction(engine) as connection:
        request = await load_request(
            connection, network, layers=layers, source=actor, now=at
        )
    answer = await run(request)
    # A fit is as old as what it knows: samples that came in while it was made still wait for the next one.
    async with transaction(engine) as connection:
        await lock_object(connection, "Fits", network)
        return await save_answer(
            connection, network, answer, at=at, actor=actor, apply=apply
        )


@dataclass(slots=True, kw_only=True)
class Attempts:
    """What the leader tried, so that a network whose samples are too few does not keep the others waiting."""

    done: dict[str, datetime] = field(default_factory=dict)
    """The newest sample with which each network was fitted."""
    failed: dict[str, datetime] = field(default_factory=dict)
    """When fitting it last failed."""

    def is_due(self, network: str, newest_at: datetime, now: datetime) -> bool:
        """Whether to try now."""
        failed_at = self.failed.get(network)
        return self.done.get(network) != newest_at and (
            failed_at is None or now - failed_at >= RETRY_AFTER
        )


async def refit_waiting(
    engine: Engine,
    run: Run,
    *,
    layers: Layers,
    now: Callable[[], datetime],
    attempts: Attempts,
) -> RefitOutcome | None:
    """Refit the network whose new samples wait longest; None when there is none.

    Its operating points are put in force where the policy is in mode auto and learning. Raises what `refit` does; then
    the others come first, and this one after RETRY_AFTER again.
    """
    async with transaction(engine) as connection:
        waiting = await samples.list_unfitted(connection)
        settings = await policies.load_current(connection)
    due = (
        (name, newest_at)
        for name, newest_at in waiting
        if attempts.is_due(name, newest_at, now())
    )
    network, newest_at = next(due, (None, None))
    if network is None or newest_at is None:
        return None
    # Counted as failed until it succeeds: a refit that raises, or is cancelled, must not be the first again.
    attempts.failed[network] = now()
    apply = settings.learning and settings.mode is Mode.AUTO
    outcome = await refit(
        engine, run, network, layers=layers, actor=ACTOR, now=now, apply=apply
    )
    attempts.done[network] = newest_at
    del attempts.failed[network]
    return outcome


async def load_request(
    connection: AsyncConnection,
    network: str,
    *,
    layers: Layers,
    source: str,
    now: datetime,
) -> RefitRequest:
    """What a refit of the network works on. Raises NotFound, and InvalidRequest when nothing is known of it."""
    is_training = (await profiles.get_network(connection, network)).is_training
    found = await samples.load(
        connection, network=network, own_limit=MAX_OWN, other_limit=MAX_OTHERS
    )
    if not len(found) and network not in layers:
        raise InvalidRequest(
            f"there are no samples of {network!r}, and its layers are not known; send some to "
            f"/networks/{network}/samples first"
        )
    points = await profiles.load_points(connection)
    # A training step says nothing of how fast or large inference is, nor the other way round.
    like = {
        row.name
        for row in await profiles.list_networks(connection)
        if row.is_training == is_training
    } - {network}
    return RefitRequest(
        network=network,
        is_training=is_training,
        samples=found,
        gpu_types=await gpu_types.load_all(connection, now),
        present=tuple(entry for entry in points if entry.network == network),
        other_profiles=tuple(entry for entry in points if entry.network in like),
        fleet=frozenset(gpu.gpu_type for gpu in await nodes.load_gpus(connection)),
        layers=layers,
        source=source,
    )


async def save_answer(
    connection: AsyncConnection,
    network: str,
    answer: RefitAnswer,
    *,
    at: datetime,
    actor: str,
    apply: bool,
) -> RefitOutcome:
    """Keep the fits, judge the operating points, and write both in the audit."""
    present = await _load_present(connection, network)
    verdicts = [
        RefitVerdict(gpu_type=name, applied=False, reason=why)
        for name, why in answer.problems
    ]
    applied: list[StoredProfile] = []
    for candidate in answer.candidates:
        gpu_type = candidate.performance.points.gpu_type
        verdict = judge(
            candidate,
            bar=error_bar(candidate, present.profiles.get(gpu_type)),
            is_alarmed=gpu_type in present.alarmed,
            apply=apply,
        )
        if verdict.applied:
            applied.append(_profile(candidate))
        verdicts.append(verdict)

    if applied:
        await profiles.save_profiles(connection, applied, at=at)
    ids = await fits.save(connection, answer.fits, at=at)
    # The audit lists changes: a refit that found the same again is none.
    if ids or applied:
        await events.add(
            connection, _event(network, answer, verdicts, at=at, actor=actor)
        )
    rows = await fits.list_rows(connection, network=network, current_only=True)
    return RefitOutcome(
        fits=rows,
        verdicts=tuple(sorted(verdicts, key=lambda verdict: verdict.gpu_type)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Present:
    """What is in force of a network, by GPU type."""

    profiles: Mapping[str, ProfileInForce]
    alarmed: frozenset[str]
    """GPU types where the profile has drifted from what is served."""


async def _load_present(connection: AsyncConnection, network: str) -> _Present:
    # Of the fits only the latency's: a candidate's error, which they are compared with, is one of times.
    rows = await fits.list_rows(connection, network=network, current_only=True)
    errors = {
        row.gpu_type: row.cross_validated_error
        for row in rows
        if row.quantity == "latency_ms"
    }
    versions = await profiles.list_profiles(connection, network_name=network)
    healths = await health.load_all(connection, network)
    return _Present(
        profiles={
            row.gpu_type: ProfileInForce(
                is_estimated=row.provenance == "estimated",
                fit_error=errors.get(row.gpu_type)
                if row.origin is ProfileOrigin.FITTED
                else None,
            )
            for row in versions
            if row.is_current
        },
        alarmed=frozenset(row.group.gpu_type for row in healths if row.now.is_alarmed),
    )


def _profile(candidate: RefitCandidate) -> StoredProfile:
    if candidate.is_estimated:
        source = f"{ProfileOrigin.ESTIMATED} by {candidate.technique}"
    else:
        source = f"{ProfileOrigin.FITTED} by {candidate.technique} to {candidate.sample_count} samples"
    return StoredProfile(
        points=candidate.performance.points,
        provenance="estimated" if candidate.is_estimated else "measured",
        source=source,
        latency_sigma=candidate.performance.latency_sigma,
    )


def _event(
    network: str,
    answer: RefitAnswer,
    verdicts: Sequence[RefitVerdict],
    *,
    at: datetime,
    actor: str,
) -> AuditEvent:
    reasons = "; ".join(f"{verdict.gpu_type}: {verdict.reason}" for verdict in verdicts)
    return AuditEvent(
        at=at,
        actor=actor,
        kind="NetworkFitted",
        subject=f"network/{network}",
        reason=reasons or "no latency could be fitted",
        after={
            "fits": len(answer.fits),
            "applied": [verdict.gpu_type for verdict in verdicts if verdict.applied],
        },
    )
