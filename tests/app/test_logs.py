"""Quiet stretches: nothing but errors gets through, and afterwards all is as before."""

import logging

import pytest
import structlog

from app.logs import errors_only


def test_only_errors_are_logged_and_never_among_results(capsys: pytest.CaptureFixture[str]) -> None:
    with errors_only():
        structlog.get_logger("a").warning("a warning")
        structlog.get_logger("a").error("an error")
        logging.getLogger("b").warning("another warning")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "an error" in shown.err and "warning" not in shown.err


def test_afterwards_logging_is_as_before() -> None:
    before, level = structlog.get_config(), logging.getLogger().level
    with pytest.raises(ValueError, match="broken"), errors_only():
        raise ValueError("broken")
    after = structlog.get_config()
    assert (after["wrapper_class"], logging.getLogger().level) == (before["wrapper_class"], level)
