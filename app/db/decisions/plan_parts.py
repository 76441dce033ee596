"""Parts of a plan that have tables of their own: steps, violations and demands."""

from collections.abc import Sequence

from sqlalchemy import insert, select, text
from sqlalchemy.dialects.postgresql import insert as upserting
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.tables import AnyRow, demand, plan_step, plan_violation
from app.store.store import PlanRecord
from solvers.types.outcome import SolveReport, SolveStatus, Violation
from solvers.types.state import Demand


async def record_steps(
    connection: AsyncConnection, plan_id: int, steps: tuple[SolveReport, ...]
) -> None:
    """Write down which techniques ran, in their order."""
    if steps:
        rows = [
            {
                "plan_id": plan_id,
                "position": position,
                "technique": step.technique,
                "method": step.method,
                "status": step.status.value,
                "objective": step.objective,
                "bound": step.bound,
                "seconds": step.seconds,
                "messages": list(step.messages),
            }
            for position, step in enumerate(steps)
        ]
        await connection.execute(insert(plan_step), rows)


async def record_violations(
    connection: AsyncConnection, plan_id: int, violations: tuple[Violation, ...]
) -> None:
    """Write down which rules the plan breaks."""
    if violations:
        rows = [
            {
                "plan_id": plan_id,
                "position": position,
                "rule": violation.rule,
                "severity": violation.severity,
                "place": violation.where,
                "detail": violation.detail,
            }
            for position, violation in enumerate(violations)
        ]
        await connection.execute(insert(plan_violation), rows)


async def record_demands(
    connection: AsyncConnection, plan_id: int, noun: PlanRecord
) -> None:
    """Write down what the plan was made for; a service has one demand per moment and method, the newest plan's."""
    if not noun.demands:
        return
    # Plans made at one moment state the same key: the demand of the later plan replaces the earlier one's.
    statement = upserting(demand)
    changed = {name: statement.excluded[name] for name in _OF_DEMAND}
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=["service", "at", "method"], set_=changed
        ),
        [
            {
                "service": entry.service,
                "at": noun.at,
                "arrival_rate_rps": entry.arrival_rate_rps,
                "method": entry.method,
                "plan_id": plan_id,
                "low_rps": low_rps,
                "high_rps": high_rps,
            }
            for entry in noun.demands
            for low_rps, high_rps in [entry.interval_rps or (None, None)]
        ],
    )


_OF_DEMAND = ("arrival_rate_rps", "plan_id", "low_rps", "high_rps")


async def load_steps(
    connection: AsyncConnection, plan_id: int
) -> tuple[SolveReport, ...]:
    """The techniques that ran, in their order."""
    statement = (
        select(plan_step)
        .where(plan_step.c.plan_id == plan_id)
        .order_by(plan_step.c.position)
    )
    return tuple(
        SolveReport(
            technique=row.technique,
            method=row.method,
            status=SolveStatus(row.status),
            objective=row.objective,
            bound=row.bound,
            seconds=row.seconds,
            messages=tuple(row.messages),
        )
        for row in await connection.execute(statement)
    )


async def load_violations(
    connection: AsyncConnection, plan_id: int
) -> tuple[Violation, ...]:
    """The rules that the plan breaks."""
    statement = (
        select(plan_violation)
        .where(plan_violation.c.plan_id == plan_id)
        .order_by(plan_violation.c.position)
    )
    return tuple(
        Violation(
            rule=row.rule, severity=row.severity, where=row.place, detail=row.detail
        )
        for row in await connection.execute(statement)
    )


async def load_demands(connection: AsyncConnection, plan_id: int) -> tuple[Demand, ...]:
    """The demands that the plan was made for, by service."""
    statement = (
        select(demand).where(demand.c.plan_id == plan_id).order_by(demand.c.service)
    )
    return tuple(as_demand(row) for row in await connection.execute(statement))


async def load_decided_rps(
    connection: AsyncConnection, services: Sequence[str]
) -> dict[str, float]:
    """The rate that the newest decision was made for, of those services for which one was."""
    if not services:
        return {}
    found = await connection.execute(text(_DECIDED), {"services": list(services)})
    return {row.service: row.arrival_rate_rps for row in found}


# By the primary key: the newest row of each, however many there are.
_DECIDED = """
SELECT s.name AS service, d.arrival_rate_rps
FROM service s
CROSS JOIN LATERAL (SELECT at, arrival_rate_rps FROM demand WHERE demand.service = s.name AND method <> 'stated'
                    ORDER BY at DESC LIMIT 1) AS d
WHERE s.name = ANY(:services) AND s.deleted_at IS NULL AND d.at >= s.created_at
"""


def as_demand(row: AnyRow) -> Demand:
    """A row of `demand`."""
    return Demand(
        service=row.service,
        arrival_rate_rps=row.arrival_rate_rps,
        method=row.method,
        interval_rps=None if row.low_rps is None else (row.low_rps, row.high_rps),
    )
