"""Durations and moments as people type them."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import typer

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
# A century: no command needs more, and moments thousands of years away overflow datetime.
MAX_DURATION = timedelta(days=36_500)
_SECONDS = re.compile(r"\d+(?:\.\d+)?")
_NO_DURATION = "{!r} is not a duration; write 90s, 15m, 24h, 7d, 2w or 1h30m, or seconds alone, such as 90"


def parse_duration(typed: str) -> timedelta:
    """`90s`, `15m`, `24h`, `7d`, `2w`, `1h30m`, or seconds alone as `90`. Raises BadParameter."""
    if _SECONDS.fullmatch(typed):
        typed += "s"
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhdw])", typed)
    # findall skips what it cannot read: put together again, the parts must be all that was typed.
    if not parts or "".join(number + unit for number, unit in parts) != typed:
        raise typer.BadParameter(_NO_DURATION.format(typed))
    seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    # Cut first, because timedelta refuses numbers of days that it cannot hold by an error of its own.
    found = timedelta(seconds=min(seconds, 2.0 * MAX_DURATION.total_seconds()))
    # The timedelta is judged, not the seconds: it rounds to microseconds, and a loop with steps of 0 s never ends.
    if not timedelta(0) < found <= MAX_DURATION:
        raise typer.BadParameter(
            f"{typed!r} must be above 0 when rounded to microseconds, and at most 100 years"
        )
    return found


def parse_timeout(typed: str) -> float:
    """Seconds of a duration, or of no time, such as `0` and `0s`. Raises BadParameter."""
    is_none = re.fullmatch(r"0+(?:\.0*)?[smhdw]?", typed)
    return 0.0 if is_none else parse_duration(typed).total_seconds()


def seconds_within(low_s: float, high_s: float) -> Callable[[str | float], float]:
    """What reads an option of a duration as seconds within these bounds; a default is a number."""

    def duration(typed: str | float) -> float:
        found_s = parse_timeout(f"{typed:g}" if isinstance(typed, float) else typed)
        if not low_s <= found_s <= high_s:
            raise typer.BadParameter(
                f"{typed!r} must be between {duration_text(low_s)} and {duration_text(high_s)}"
            )
        return found_s

    return duration


def duration_text(seconds: float) -> str:
    """`1d2h`, `4m52s` or `0.5s`: what parse_duration reads, in at most two units; below a minute to the millisecond."""
    parts = []
    # Rounded before it is divided: 59.9996 s must not become 60s.
    rest = round(seconds, 3 if seconds < UNITS["m"] else 0)
    for unit in ("d", "h", "m"):
        number, rest = divmod(rest, UNITS[unit])
        if number:
            parts.append(f"{number:.0f}{unit}")
    if rest or not parts:
        parts.append(f"{round(rest, 3):g}s")
    return "".join(parts[:2])


def parse_moment(typed: str, now: datetime) -> datetime:
    """A duration before now, or an ISO 8601 date or time (UTC where it has no zone). Raises BadParameter."""
    # A year tells a date from a duration, so that the error is about what was meant.
    if re.match(r"\d{4}-", typed):
        try:
            moment = datetime.fromisoformat(typed)
        except ValueError as error:
            raise typer.BadParameter(
                f"{typed!r} is not a time: {error}; write 2026-01-31 or 2026-01-31T18:00Z"
            ) from error
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    # Seconds alone may be meant as a year or as a Unix time.
    if _SECONDS.fullmatch(typed):
        raise typer.BadParameter(
            f"{typed!r} is no time; write {typed}s for that many seconds ago, or 2026-01-31T18:00Z"
        )
    return now - parse_duration(typed)
