"""Health as JSON values, for the row in which it outlives the process. Strict in reading."""

from solvers.predict.learn.online import FilterState, FitState, RowKey
from solvers.types.documents.strict_json import (
    MAX_NUMBER,
    Fields,
    read_integer,
    read_items,
    read_number,
)
from solvers.types.errors import InvalidInput
from solvers.types.state import Json


def fit_state_to_document(health: FitState) -> dict[str, Json]:
    """The health as JSON values."""
    belief = health.belief
    # Plain names of today's fields; the reader below refuses every other, so that a change of format is noticed.
    return {
        "rows": [list(row) for row in belief.rows],
        "mean": list(belief.mean),
        "covariance": [list(row) for row in belief.covariance],
        "seen_until_s": health.seen_until_s,
        "error": health.error,
        "shortfall": health.shortfall,
        "band": health.band,
        "streak": health.streak,
        "alarm_since_s": health.alarm_since_s,
        "readings": health.readings,
    }


def fit_state_from_document(document: object) -> FitState:
    """Read what `fit_state_to_document` made. Raises InvalidInput, which names the field."""
    fields = Fields(document, "health")
    health = FitState(
        belief=FilterState(
            rows=fields.each("rows", _row),
            mean=fields.each("mean", _any_number),
            covariance=fields.each("covariance", _numbers),
        ),
        seen_until_s=fields.number("seen_until_s"),
        error=fields.number("error"),
        shortfall=fields.number("shortfall"),
        band=fields.number("band", above=0.0),
        # Negative while periods are inside the band.
        streak=int(fields.number("streak", at_least=-MAX_NUMBER)),
        alarm_since_s=fields.number("alarm_since_s")
        if fields.has("alarm_since_s")
        else None,
        readings=fields.integer("readings"),
    )
    fields.done()
    _check_sizes(health.belief)
    return health


def _check_sizes(belief: FilterState) -> None:
    # Entry 0 is what all rows have in common.
    size = len(belief.rows) + 1
    if [len(belief.mean), *map(len, belief.covariance)] != [size] * (size + 1):
        raise InvalidInput(
            "health",
            f"mean and covariance must be of size {size}: one more than there are rows",
        )


def _row(value: object, path: str) -> RowKey:
    items = [item for item, _ in read_items(value, path)]
    if len(items) != len(RowKey._fields):
        raise InvalidInput(
            path, f"must be {', '.join(RowKey._fields)}, not {len(items)} items"
        )
    sm_percent, batch, clock_mhz = items
    return RowKey(
        sm_percent=read_number(sm_percent, path, above=0.0),
        batch=read_integer(batch, path, at_least=1),
        clock_mhz=read_number(clock_mhz, path, above=0.0),
    )


def _numbers(value: object, path: str) -> tuple[float, ...]:
    return tuple(_any_number(item, at) for item, at in read_items(value, path))


def _any_number(value: object, path: str) -> float:
    return read_number(value, path, at_least=-MAX_NUMBER)
