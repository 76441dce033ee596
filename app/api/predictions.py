"""What is known of a network's times on each GPU type: profile in force, fit, samples, and what serving says."""

import math
from datetime import UTC, datetime

from app.api.schemas import PredictionView
from app.control.store import FitHealth
from app.db import fits, health, profiles, samples
from app.db.fits import FitRow
from app.db.profiles import ProfileRow
from app.db.transaction import Connection


async def load_predictions(connection: Connection, network: str) -> list[PredictionView]:
    """One entry per GPU type that the network has a profile on, by GPU type."""
    versions = await profiles.list_profiles(connection, network_name=network)
    fitted = {
        row.gpu_type: row
        for row in await fits.list_rows(connection, network=network, current_only=True)
        if row.quantity == "latency_ms"
    }
    counted = {row.gpu_type: row.samples for row in await samples.count(connection, network=network)}
    served = {row.group.gpu_type: row for row in await health.load_all(connection, network)}
    current = sorted((row for row in versions if row.is_current), key=lambda row: row.gpu_type)
    return [
        _view(row, fitted.get(row.gpu_type), counted.get(row.gpu_type, 0), served.get(row.gpu_type)) for row in current
    ]


def _view(profile: ProfileRow, fit: FitRow | None, sampled: int, served: FitHealth | None) -> PredictionView:
    now = None if served is None else served.now
    since_s = None if now is None else now.alarm_since_s
    return PredictionView(
        gpu_type=profile.gpu_type,
        profile_version=profile.version,
        provenance=profile.provenance,
        source=profile.source,
        technique=None if fit is None else fit.technique,
        cross_validated_error=None if fit is None else fit.cross_validated_error,
        samples=sampled,
        correction=None if now is None else math.exp(now.belief.mean[0]),
        error=None if now is None else now.error,
        band=None if now is None else now.band,
        alarm_since=None if since_s is None else datetime.fromtimestamp(since_s, UTC),
    )
