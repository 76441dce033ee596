"""HAProxy as tests want it; those of the gateway and of whole nodes import it from here."""

import pytest

import agents.gateway.config
from agents.router.haproxy import config, runtime_socket, supervised
from tests.waiting import PATIENCE_S


@pytest.fixture(autouse=True)
def patient_haproxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for replicas, and is waited for, as long as tests wait: any process may stand still for a while.

    Replicas that are gone, fail or say that they are not ready are found out as ever."""
    for each in (config, agents.gateway.config):
        monkeypatch.setattr(each, "CHECK_TIMEOUT_MS", int(1000 * PATIENCE_S))
    monkeypatch.setattr(runtime_socket, "ANSWER_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(supervised, "START_LIMIT_S", PATIENCE_S)
