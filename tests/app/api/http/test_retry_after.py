"""Whatever passes by itself says when to come again: each class of exceptions that is answered 429 or 503."""

from collections.abc import Iterator

import pytest
from starlette.exceptions import HTTPException

from app.api.http.errors import PROBLEMS, TRANSIENT_STATUSES, problem_response
from tests.app.api.http.test_openapi import OPERATIONS


def _classes() -> Iterator[type[Exception]]:
    """Those of the table that are answered so, with all that inherit from them."""
    open_classes = [
        each for each, kind in PROBLEMS if kind.status in TRANSIENT_STATUSES
    ]
    while open_classes:
        found = open_classes.pop()
        yield found
        open_classes += found.__subclasses__()


FAULTS = [
    *(found("a part is away") for found in sorted(set(_classes()), key=str)),
    *(HTTPException(status) for status in sorted(TRANSIENT_STATUSES)),
]


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
def test_every_answer_that_passes_by_itself_says_when_to_come_again(
    fault: Exception,
) -> None:
    answer = problem_response(fault, path="/", request_id="x")
    assert answer.status_code in TRANSIENT_STATUSES
    assert int(answer.headers["Retry-After"]) >= 1


def test_every_such_answer_is_documented_with_its_header() -> None:
    assert [
        f"{name} {status}"
        for name, operation in OPERATIONS.items()
        for status in map(str, sorted(TRANSIENT_STATUSES))
        if status in operation["responses"]
        and "Retry-After" not in operation["responses"][status].get("headers", {})
    ] == []
