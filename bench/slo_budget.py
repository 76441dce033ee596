"""What the error budgets of 200 services cost the database: 30 days of hours, six hours of windows of 5 s.

Run: `python -m bench.slo_budget [--services 200]`. Times one load of report.slo_budget as the dashboard's topic asks
for it, and of the same view as it reads every window, which the tests hold it against.
"""

import argparse
import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.reports import service_board
from app.store.store import PolicySettings
from bench.real_store import Fleet, open_fleet, temporary_database
from bench.report import Figures, print_table, write_results
from solvers.types.state import Mode

REPEATS = 5
DAYS = 30
WINDOW_S = 5.0
WINDOWS_KEPT_S = 6 * 3600.0
ALL_WINDOWS = Path(__file__).parents[1] / "tests/data/slo_budget_all_windows.sql"


def main() -> int:
    """Fill, measure, print, write."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.slo_budget", description=__doc__
    )
    parser.add_argument(
        "--services", type=int, default=200, help="(default: %(default)s)"
    )
    options = parser.parse_args()
    with temporary_database() as url:
        rows = [
            asyncio.run(
                _measure(
                    url, Fleet(nodes=1, gpus_per_node=1, services=options.services)
                )
            )
        ]
    print_table(rows)
    write_results("slo_budget", rows)
    return 0


async def _measure(url: str, fleet: Fleet) -> Figures:
    # Ten minutes into an hour, most of the periods' edges are as long as they get.
    now = datetime.now(UTC).replace(minute=10, second=0, microsecond=0) - timedelta(
        hours=1
    )
    settings = PolicySettings(window_s=WINDOW_S, mode=Mode.OFF)
    async with (
        open_fleet(url, fleet, settings, now) as engine,
        engine.connect() as connection,
    ):
        await _fill(connection, now)
        took_s = [await _load_s(connection) for _ in range(REPEATS)]
        before = ALL_WINDOWS.read_text(encoding="utf-8")
        await connection.execute(
            text(
                before.replace(
                    "VIEW all_windows", "OR REPLACE VIEW report.slo_budget", 1
                )
            )
        )
        before_s = [await _load_s(connection) for _ in range(REPEATS)]
    return {
        "services": fleet.services,
        "days": DAYS,
        "window_s": WINDOW_S,
        "load_ms": 1000.0 * median(took_s),
        "load_ms_without_sums": 1000.0 * median(before_s),
    }


async def _load_s(connection: AsyncConnection) -> float:
    began_s = time.monotonic()
    await service_board.load_budgets(connection, None)
    return time.monotonic() - began_s


async def _fill(connection: AsyncConnection, now: datetime) -> None:
    values = {"now": now, "kept_s": WINDOWS_KEPT_S, "window_s": WINDOW_S, "days": DAYS}
    for statement in (_SEEN, _WINDOWS, _STEPS, _HOURS):
        await connection.execute(
            text(statement),
            {name: values[name] for name in values if f":{name}" in statement},
        )
    await connection.execute(text("ANALYZE"))


_SEEN = "UPDATE node SET last_seen_at = :now"

_WINDOWS = """
INSERT INTO service_window
SELECT s.name, start, :window_s, 50, 50, 49, 0, '{0,0,0,20,30}' FROM service s
CROSS JOIN generate_series(CAST(:now AS timestamptz) - make_interval(secs => :kept_s), :now,
                           make_interval(secs => :window_s)) AS start
"""

_STEPS = """
INSERT INTO service_step
SELECT service, date_bin('5 minutes', window_start, 'epoch'), min(window_start),
       max(window_start + make_interval(secs => window_s)), sum(served), sum(in_slo), sum(rejected)
FROM service_window GROUP BY 1, 2
"""

_HOURS = """
INSERT INTO service_hour
SELECT s.name, hour, 36000, 36000, 35500, 0 FROM service s
CROSS JOIN generate_series(date_trunc('hour', CAST(:now AS timestamptz), 'UTC') - make_interval(days => :days),
                           date_trunc('hour', CAST(:now AS timestamptz), 'UTC'), interval '1 hour') AS hour
"""


if __name__ == "__main__":
    raise SystemExit(main())
