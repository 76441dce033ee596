"""The OpenAPI document: fresh, complete, and every route behind a token."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.routing import Route

from app.api.application import PREFIX, make_api
from app.api.http.auth import PUBLIC
from app.api.http.errors import MEDIA_TYPE
from tests.waiting import run
from tools.documents.openapi import PATH

DOCUMENT: dict[str, Any] = {}
OPERATIONS: dict[str, dict[str, Any]] = {}
OF_RESOURCES: dict[str, dict[str, Any]] = {}


@pytest.fixture(scope="module", autouse=True)
def made() -> None:
    """The document takes a second to make: not while tests are collected."""
    DOCUMENT.update(make_api().openapi())
    for path, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            name = f"{method.upper()} {path}"
            OPERATIONS[name] = operation
            if PREFIX in name:
                OF_RESOURCES[name] = operation


def test_the_checked_in_document_is_what_the_code_says() -> None:
    text = json.dumps(DOCUMENT, indent=2, sort_keys=True, ensure_ascii=False)
    assert PATH.read_text() == text + "\n", "run `make openapi`"


def test_the_document_is_written_once_while_others_are_answered() -> None:
    app = make_api()
    (route,) = (
        each
        for each in app.routes
        if isinstance(each, Route) and each.path == "/openapi.json"
    )
    scope = {"type": "http", "app": app, "root_path": "", "headers": []}

    async def turns_of_others() -> int:
        making = asyncio.ensure_future(route.endpoint(Request(scope)))
        turns = 0
        while not making.done():
            await asyncio.sleep(0)
            turns += 1
        assert making.result().status_code == 200
        again = await route.endpoint(Request(scope))
        assert again.body is making.result().body
        assert json.loads(again.body)["openapi"] == DOCUMENT["openapi"]
        return turns

    assert run(turns_of_others()) > 10


def test_every_operation_has_a_name_of_its_own_and_a_description() -> None:
    names = [operation["operationId"] for operation in OPERATIONS.values()]
    assert sorted(names) == sorted(set(names))
    # Generators of clients make functions and files of them.
    wrong = [name for name in names if not re.fullmatch(r"[a-z]+(_[a-z0-9]+)*", name)]
    assert wrong == []
    assert {"put_service", "list_services", "get_plan", "sync_node"} < set(names)
    assert [
        name
        for name, operation in OPERATIONS.items()
        if not operation.get("description")
    ] == []


def test_every_resource_needs_a_token_and_says_what_is_answered_without() -> None:
    assert [
        name
        for name, operation in OF_RESOURCES.items()
        if not operation.get("security")
    ] == []
    for status in ("401", "403", "422", "503"):
        assert [
            name
            for name, operation in OF_RESOURCES.items()
            if status not in operation["responses"]
        ] == []


def test_only_probes_and_documents_are_public() -> None:
    assert {
        name.split(" ")[1] for name in OPERATIONS.keys() - OF_RESOURCES.keys()
    } < PUBLIC
    assert not any(path.startswith(PREFIX) for path in PUBLIC)


def test_every_documented_error_is_a_problem() -> None:
    wrong = [
        (name, status)
        for name, operation in OF_RESOURCES.items()
        for status, answer in operation["responses"].items()
        if int(status) >= 400 and list(answer["content"]) != [MEDIA_TYPE]
    ]
    assert wrong == []


def test_every_post_takes_an_idempotency_key_but_those_that_are_idempotent() -> None:
    keyless = {
        name
        for name, operation in OF_RESOURCES.items()
        if name.startswith("POST")
        and "Idempotency-Key"
        not in [parameter["name"] for parameter in operation.get("parameters", [])]
    }
    assert keyless == {
        # As the PUTs that it is made of: a repeated one changes nothing, since its ETags are those of before.
        "POST /api/v1/apply",
        "POST /api/v1/plans/compare",
        "POST /api/v1/plans/preview",
        "POST /api/v1/nodes/{name}/sync",
        "POST /api/v1/nodes/{name}/logs/{request_id}",  # A question is answered once.
        "POST /api/v1/nodes/{name}/enrol",  # A secret's hash is taken once.
        "POST /api/v1/networks/{name}/samples",
        "POST /api/v1/networks/{name}/fit",
        "POST /api/v1/services/{name}/telemetry",  # A window of a source comes once.
    }


def test_every_reference_leads_somewhere() -> None:
    known = {
        f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]
    }
    assert set(_references(DOCUMENT)) <= known


def _schemas(part: object) -> Iterator[dict[str, Any]]:
    """Every object within; examples in it hold neither titles nor items."""
    if isinstance(part, dict):
        yield part
    if isinstance(part, dict | list):
        for value in part.values() if isinstance(part, dict) else part:
            yield from _schemas(value)


def _references(part: object) -> list[str]:
    if isinstance(part, dict):
        own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
        return own + [
            reference for value in part.values() for reference in _references(value)
        ]
    return (
        [reference for value in part for reference in _references(value)]
        if isinstance(part, list)
        else []
    )
