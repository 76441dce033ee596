"""Measurements of a network that a fit learns from, and the fit made in the test's own process."""

from collections.abc import Callable
from typing import Any

import pytest

from app.db.predictions.refits import RefitOutcome, refit
from app.learn.refit import RefitAnswer, RefitRequest, run_refit
from tests.integration.api_harness import Api


def true_ms(batch: float, share: float) -> float:
    """What a batch takes at that SM percent."""
    return (2.0 + 3.0 * batch) * 100.0 / (share + 10.0)


def measured(factor: float = 1.0) -> list[dict[str, object]]:
    """Twenty samples on T4s: four batches at five SM percents."""
    return [
        {
            "gpu_type": "T4",
            "batch": batch,
            "sm_percent": share,
            "latency_ms": factor * true_ms(batch, share),
            "memory_mib": 1000 + 10 * batch,
        }
        for batch in (1, 2, 4, 8)
        for share in (20, 40, 60, 80, 100)
    ]


async def run_here(request: RefitRequest) -> RefitAnswer:
    """Without a process of its own, which takes two seconds to start."""
    return run_refit(request)


async def _in_this_process(
    run: Callable[[Any], Any], request: Any, *, limit_s: float
) -> Any:
    return run(request)


def let_the_api_fit_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a process and its limit, which a busy machine reaches."""
    name = "app.api.predictions.fits.run_in_process"
    monkeypatch.setattr(name, _in_this_process)


def fit_here(api: Api, network: str = "resnet50") -> RefitOutcome:
    """What a refit of what was sent makes; nothing of it is put in force."""
    how: dict[str, Any] = {"layers": {}, "actor": "test", "now": api.clock.now}
    return api.on_engine(
        lambda engine: refit(engine, run_here, network, apply=False, **how)
    )
