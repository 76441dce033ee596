"""What the leader does by the hour: partitions ahead, roll-ups, and forgetting what is old."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db.fleet.ingest import ensure_days
from app.db.predictions import samples
from app.db.predictions.rates import roll_up_rates
from app.store.launch_book import FORGOTTEN_AFTER
from app.store.store import SERVED

# Partitions exist before their day begins, so that the first ingest after midnight does not wait for their lock.
DAYS_AHEAD = 2

# An observation that was received before the roll-up began may be committed after it: look back a little further.
COMMIT_SLACK = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long rows are kept, in days. Hourly totals, targets, events and prices are kept for ever."""

    observations_days: int = 30
    plans_days: int = 30
    """Plans that were never in force, with their demands; commands and acknowledgements before each node's newest."""
    kept_hours: int = 24
    """Ticks that changed nothing; at a period of five seconds there are 17,000 a day."""
    idempotency_days: int = 1
    windows_hours: int = 6
    pushed_days: int = 2
    """Windows that were pushed; older ones are not taken any more, so nothing can repeat them."""
    rates_days: int = 28
    """Arrivals in steps of five minutes, which seasons come from, and choices of a forecast that are not renewed."""
    served_samples_days: int = 30
    """Measurements that were read off served executions; those that people sent are kept for ever."""
    served_samples: int = 5000
    """The number kept of a network on a GPU type, the newest: a plan that changes all day makes new ones."""
    old_fits_days: int = 90
    """Fits that are no longer in force."""
    tokens_days: int = 90
    """Tokens that have ended; the newest of a registered node stays, since the node's name was taken by it."""
    tasks_days: int = 90
    """Tasks that are over; what they cost stays in the reports."""
    tasks: int = 10_000
    """The number of those that are kept, the newest."""


async def load_time(engine: AsyncEngine) -> datetime:
    """The database's time: what is deleted must not depend on the clock of whichever machine leads."""
    async with engine.connect() as connection:
        found = await connection.execute(text("SELECT now()"))
        now: datetime = found.scalar_one()
    return now


async def maintain(
    engine: AsyncEngine, now: datetime, keep: Retention | None = None
) -> None:
    """All of it, in short transactions. Safe to run at any time, and by two processes at once.

    `now` is the database's (`load_time`) wherever time is real.
    """
    keep = keep or Retention()
    async with engine.begin() as connection:
        await ensure_days(
            connection,
            {(now + timedelta(days=ahead)).date() for ahead in range(DAYS_AHEAD + 1)},
        )
    # The sums are made before anything is forgotten: they are made from rows that `forget` deletes.
    await roll_up(engine, now)
    async with engine.begin() as connection:
        await roll_up_rates(connection, now)
    await forget(engine, now, keep)


async def roll_up(engine: AsyncEngine, now: datetime) -> None:
    """Bring gpu_hour and use_hour up to the last full hour, and again every older hour that got late observations."""
    async with engine.begin() as connection:
        # The one row is the lock: two leaders, one of which does not know yet that it is none, do not sum at once.
        await connection.execute(text("SELECT FROM roll_up FOR UPDATE"))
        await connection.execute(text(_UNDO_FUTURE_MARKS), {"now": now})
        hours = await connection.execute(
            text(_HOURS_TO_SUM), {"now": now, "slack": COMMIT_SLACK}
        )
        # One by one: each has the time limit of a statement to itself, also after a day without a leader.
        for hour in hours.scalars().all():
            await connection.execute(text(_SUM_HOUR), {"hour": hour})
            await connection.execute(text(_SUM_USES), {"hour": hour})
        # `greatest`: a clock that was set back must not move the marks back.
        await connection.execute(
            text(
                "UPDATE roll_up SET hours_until = greatest(hours_until, date_trunc('hour', :now, 'UTC')), "
                "received_until = greatest(received_until, :now)"
            ),
            {"now": now},
        )


async def forget(engine: AsyncEngine, now: datetime, keep: Retention) -> None:
    """Drop partitions and rows that are older than they are kept.

    Telemetry and what is made of it is kept for as long before the newest window, too: a clock that is wrong, also the
    database's own, must not delete the newest that there is.
    """
    measured = min(now, await _newest_telemetry(engine) or now)
    await _forget_observations(engine, measured, keep)
    ends = {rule: now - age for rule, age in _rules(keep).items()}
    ends |= {rule: measured - age for rule, age in _telemetry_rules(keep).items()}
    # One transaction for each rule: a long deletion does not keep the rows of the others locked.
    for condition, before in ends.items():
        async with engine.begin() as connection:
            await connection.execute(
                text(f"DELETE FROM {condition}"), {"before": before}
            )
    async with engine.begin() as connection:
        await samples.keep_newest_served(connection, keep.served_samples)
        await connection.execute(text(_FORGET_TASKS), {"limit": keep.tasks})


async def _newest_telemetry(engine: AsyncEngine) -> datetime | None:
    """When the newest window ended that a node reported or somebody pushed; None: there is none."""
    async with engine.connect() as connection:
        found = await connection.execute(text(_NEWEST_TELEMETRY))
        newest: datetime | None = found.scalar_one()
    return newest


# Windows that were pushed have no node. `greatest` passes over what is null.
_NEWEST_TELEMETRY = """
SELECT greatest((SELECT max(last_window_end) FROM node), (SELECT max(last_end) FROM service_step))
"""


async def _forget_observations(
    engine: AsyncEngine, now: datetime, keep: Retention
) -> None:
    before = now - timedelta(days=keep.observations_days)
    # Entire partitions are dropped: a DELETE would leave millions of dead rows to vacuum.
    async with engine.begin() as connection:
        await connection.execute(
            text("SELECT drop_observation_days(:before)"), {"before": before.date()}
        )
    async with engine.begin() as connection:
        await connection.execute(text(_FORGET_BOOTS), {"before": before})


def _telemetry_rules(keep: Retention) -> Mapping[str, timedelta]:
    """Which rows of which table go once they are how old before the newest telemetry; that moment is `:before`."""
    windows = timedelta(hours=keep.windows_hours)
    rates = timedelta(days=keep.rates_days)
    return {
        "service_window WHERE window_start < :before": windows,
        "service_step WHERE start < :before": windows,
        "token_step WHERE start < :before": windows,
        "pushed_window WHERE window_start < :before": timedelta(days=keep.pushed_days),
        "service_rate WHERE start < :before": rates,
        # A choice is renewed with every judgement, so an old one belongs to a service that is not judged any more.
        "forecast_choice WHERE at < :before": rates,
        f"sample WHERE source = '{SERVED}' AND received_at < :before": timedelta(
            days=keep.served_samples_days
        ),
        # Agents' reports add and change rows meanwhile: what one of them has locked is left to the next hour.
        "launch_failure WHERE (service, gpu) IN (SELECT service, gpu FROM launch_failure "
        "WHERE failed_at < :before FOR UPDATE SKIP LOCKED)": FORGOTTEN_AFTER,
        "demand WHERE at < :before": timedelta(days=keep.plans_days),
    }


def _rules(keep: Retention) -> Mapping[str, timedelta]:
    """Which other rows of which table go once they are how old; a moment `age` ago is `:before`."""
    plans = timedelta(days=keep.plans_days)
    return {
        "fit WHERE NOT is_current AND created_at < :before": timedelta(
            days=keep.old_fits_days
        ),
        "session WHERE expires_at < :before": timedelta(),
        # People log in daily, and the audit has who did what; tokens that somebody made stay in the list.
        "token WHERE person IS NOT NULL AND expires_at < :before": timedelta(),
        f"token t WHERE {_ENDED_TOKEN}": timedelta(days=keep.tokens_days),
        "idempotency WHERE created_at < :before": timedelta(days=keep.idempotency_days),
        "task WHERE coalesce(finished_at, cancelled_at) < :before": timedelta(
            days=keep.tasks_days
        ),
        # Steps and violations go with their plan: their foreign keys cascade.
        "plan WHERE at < :before AND state = 'kept'": timedelta(hours=keep.kept_hours),
        # Whatever was once in force stays for ever, since reports read costs off it. What is proposed is the newest
        # advice, however old: it is repeated while the same is wanted.
        "plan WHERE at < :before AND state <> 'proposed' "
        "AND NOT EXISTS (SELECT FROM target WHERE target.plan_id = plan.id)": plans,
        "plan_content c WHERE used_at < :before "
        "AND NOT EXISTS (SELECT FROM plan p WHERE p.content = c.sha256) "
        "AND NOT EXISTS (SELECT FROM plan p WHERE p.problem = c.sha256)": timedelta(
            days=1
        ),
        # The newest command and acknowledgement of a node stay however old: a quiet fleet gets no new ones.
        "command c WHERE created_at < :before AND generation < "
        "(SELECT max(generation) FROM command WHERE command.node = c.node)": plans,
        "acknowledgement a WHERE at < :before AND generation < "
        "(SELECT max(generation) FROM acknowledgement WHERE acknowledgement.node = a.node)": plans,
    }


# The first of a family stays for as long as any other token of it. The newest of a node's agent says that the node was
# enrolled; join tokens that name the node do not, however new.
_ENDED_TOKEN = """
least(revoked_at, expires_at) < :before AND NOT EXISTS (SELECT FROM token s WHERE s.root = t.id)
AND NOT EXISTS (SELECT FROM node n WHERE n.id = t.node
                AND t.created_at = (SELECT max(created_at) FROM token a WHERE a.node = n.id AND a.scope = 'agent'))
"""

# As long as one of its observations is kept, a start tells replayed ones from new ones.
_FORGET_BOOTS = """
DELETE FROM agent_boot b WHERE first_seen_at < :before
AND NOT EXISTS (SELECT FROM observation o WHERE (o.node, o.boot) = (b.node, b.boot))
"""

# Marks that a clock far ahead has set would leave everything unsummed until that time has come. Every hour of which
# raw rows are kept is summed again, which changes nothing where it was summed before.
_UNDO_FUTURE_MARKS = """
UPDATE roll_up SET hours_until = '-infinity', received_until = '-infinity', rates_until = least(rates_until, :now)
WHERE greatest(hours_until, received_until, rates_until) > CAST(:now AS timestamptz) + interval '1 hour'
"""

_HOURS_TO_SUM = """
SELECT DISTINCT date_trunc('hour', window_start, 'UTC') AS hour FROM observation, roll_up
WHERE received_at >= roll_up.received_until - CAST(:slack AS interval)
  AND window_start < date_trunc('hour', CAST(:now AS timestamptz), 'UTC')
ORDER BY hour
"""

# A late observation's hour is summed again from all its rows: adding it up twice is not possible.
# Readings without `busy_percent` count as busy as the others: the known part is scaled up to the observed time. So it
# is of memory, which is none where it was never known.
_SUM_HOUR = """
INSERT INTO gpu_hour (gpu, hour, observed_s, busy_s, energy_j, memory_mib_s)
SELECT gpu, :hour, sum(window_s),
       sum(window_s * busy_percent / 100) * sum(window_s) / sum(window_s) FILTER (WHERE busy_percent IS NOT NULL),
       sum(energy_j), coalesce(sum(window_s * memory_used_mib) * sum(window_s)
                               / sum(window_s) FILTER (WHERE memory_used_mib IS NOT NULL), 0)
FROM gpu_observation WHERE window_start >= :hour AND window_start < CAST(:hour AS timestamptz) + interval '1 hour'
GROUP BY gpu
ON CONFLICT (gpu, hour) DO UPDATE SET observed_s = excluded.observed_s, busy_s = excluded.busy_s,
    energy_j = excluded.energy_j, memory_mib_s = excluded.memory_mib_s
"""

# Not every use has a memory and an SM figure: how long each was known is summed next to it, for the means of reports.
_SUM_USES = """
INSERT INTO use_hour (gpu, hour, kind, name, service, observed_s, memory_mib_s, memory_known_s, sm_percent_s,
                      sm_known_s, energy_j, estimated_j)
SELECT gpu, :hour, kind, name, service, sum(window_s),
       coalesce(sum(window_s * memory_used_mib), 0), coalesce(sum(window_s) FILTER (WHERE memory_used_mib >= 0), 0),
       coalesce(sum(window_s * sm_percent), 0), coalesce(sum(window_s) FILTER (WHERE sm_percent >= 0), 0),
       sum(energy_j), coalesce(sum(energy_j) FILTER (WHERE is_estimated), 0)
FROM use_observation WHERE window_start >= :hour AND window_start < CAST(:hour AS timestamptz) + interval '1 hour'
GROUP BY gpu, kind, name, service
ON CONFLICT (gpu, hour, kind, name, service) DO UPDATE SET observed_s = excluded.observed_s,
    memory_mib_s = excluded.memory_mib_s, memory_known_s = excluded.memory_known_s,
    sm_percent_s = excluded.sm_percent_s, sm_known_s = excluded.sm_known_s,
    energy_j = excluded.energy_j, estimated_j = excluded.estimated_j
"""

_FORGET_TASKS = """
DELETE FROM task WHERE id IN (
    SELECT id FROM task WHERE finished_at IS NOT NULL OR cancelled_at IS NOT NULL
    ORDER BY coalesce(finished_at, cancelled_at) DESC, id OFFSET :limit
)
"""
