"""Quiet stretches: nothing gets through, and afterwards all is as before."""

import logging

import pytest
import structlog

from app.base.logs import nothing_logged


def test_meanwhile_nobody_logs(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    own = logging.getLogger("with_a_level")
    own.setLevel(logging.DEBUG)
    with nothing_logged():
        structlog.get_logger("a").error("an error")
        structlog.get_logger("a").critical("the worst")
        logging.getLogger("b").error("another error")
        own.critical("the worst of all")
    assert capsys.readouterr() == ("", "")
    assert caplog.records == []


def test_afterwards_logging_is_as_before(caplog: pytest.LogCaptureFixture) -> None:
    before = structlog.get_config()["wrapper_class"]
    with pytest.raises(ValueError, match="broken"), nothing_logged():
        raise ValueError("broken")
    logging.getLogger("b").error("an error")
    assert structlog.get_config()["wrapper_class"] == before
    assert [record.message for record in caplog.records] == ["an error"]
