"""Logging: structured lines on stderr, as JSON for machines or as text for people."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from app.base.settings import Settings

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure_logs(settings: Settings) -> None:
    """Set up this process's log; call once, at start. The standard library's loggers go the same way."""
    level = LEVELS[settings.log_level]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
    ]
    renderer: structlog.typing.Processor
    if settings.log_format == "json":
        shared.append(structlog.processors.format_exc_info)
        renderer = structlog.processors.JSONRenderer()
    else:
        # Plain: the default formatter prints every local variable, tokens and passwords among them.
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            timestamp_key="ts",
            exception_formatter=structlog.dev.plain_traceback,
        )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            # Lines of libraries get the same fields as ours.
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    # In place of what a library may have set up: each line comes once.
    root.handlers[:] = [handler]
    root.setLevel(level)
    for chatty in ("alembic", "apscheduler"):
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))


@contextmanager
def nothing_logged() -> Iterator[None]:
    """Meanwhile nothing is logged: for runs whose results say all that happened, be it an alarm on a real cluster."""
    configured = structlog.get_config() if structlog.is_configured() else None
    disabled = logging.root.manager.disable
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
        logger_factory=structlog.ReturnLoggerFactory(),
    )
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)
        structlog.reset_defaults()
        if configured is not None:
            structlog.configure(**configured)
