"""Every operation of the API × every kind of token: who is let in, and that bound tokens learn nothing of others."""

import itertools
import re
from collections.abc import Iterator
from typing import cast

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Route

from app.api.application import PREFIX, RESOURCES, make_api
from app.api.http.auth import PUBLIC_PREFIX, RANK, Allowed, who_may
from app.db.reports.reports import REPORTS
from app.web.pages import PAGES, DashboardPage
from tests.integration.access_rules import (
    ACCESS,
    BESIDE,
    CALLERS,
    CLUSTER_REPORTS,
    LOGIN,
    OURS,
    PUBLIC,
    RANKED,
    THEIRS,
    Caller,
    Request,
    Rule,
)
from tests.integration.api_harness import (
    SCOPES,
    Api,
    Method,
    Prepared,
    gpu_type,
    reading,
    service,
)
from tests.integration.test_api_tasks import task

pytestmark = pytest.mark.integration

LOG_TAIL = "CUDA out of memory in tokenizer.py"
MARKERS = ("zebra", LOG_TAIL, "14.6262", "everybodys")
"""What only THEIRS has: names, the end of a task's log; what the cluster costs per hour; and the cluster's budget."""

ORDER = (*SCOPES, "join")
ARGUMENTS = {"service": "zebra-chat", "plan": "1", "why": "1", "gpu": "n1/gpu-0"}

NO_TOKENS = (None, "expired", "revoked")
"""None, and admins' tokens that ended."""

BOUND = [caller for caller in CALLERS if caller.is_bound]
VIEWER = Caller(scope="viewer", is_bound=True)


@pytest.fixture(scope="module")
def api(small_fleet: Prepared) -> Iterator[Api]:
    with small_fleet.running_api() as running:
        _fill(running)
        yield running


def _fill(api: Api) -> None:
    """Both projects with services under load, tasks, budgets and costs; on two GPUs at 7.3131 USD per hour."""
    api.put("gpu-types/T4", gpu_type(price_usd_per_hour="7.3131"))
    api.put(f"projects/{THEIRS}", {"kind": "Project", "metadata": {"name": THEIRS}})
    # Without a number of simulations its tokens may ask for none.
    quota = {"quota": {"max_simulations": 1}}
    api.put(f"projects/{OURS}", _manifest("Project", OURS, quota))
    api.add_token("join", "join")
    for caller in BOUND:
        api.add_token(caller.token, caller.scope, (OURS,))
    api.add_token("zebra-token", "operator", (THEIRS,))
    for name, column in (("expired", "expires_at"), ("revoked", "revoked_at")):
        api.add_token(name, "admin")
        ended = f"{column} = created_at + interval '1 us'"
        api.execute(f"UPDATE token SET {ended} WHERE name = :name", name=name)
    for name, project, replicas in (
        ("ours", OURS, 1),
        ("zebra-chat", THEIRS, 2),
        ("zebra-gone", THEIRS, 0),
    ):
        scaling = {"min_replicas": replicas}
        api.put(f"services/{name}", service(name, project=project, scaling=scaling))
    for name, project in (
        ("our-task", OURS),
        ("our-ended", OURS),
        ("zebra-train", THEIRS),
        ("zebra-ended", THEIRS),
    ):
        api.put(f"tasks/{name}", task(name, project=project, iterations=10**9))
    assert api.status("POST", "tasks/our-ended/cancel") == 200
    for name, of in (
        ("our-budget", {"project": OURS}),
        ("zebra-budget", {"project": THEIRS}),
        ("everybodys-purse", {}),
    ):
        spec = {**of, "period": "day", "usd": "1000", "action": "warn"}
        api.put(f"budgets/{name}", _manifest("Budget", name, spec))
    hook = {"url": "https://zebra.example/hook"}
    api.put("webhooks/zebra-hook", _manifest("Webhook", "zebra-hook", hook))
    group = {"name": "zebras", "policy": "joint", "projects": [THEIRS]}
    # Without a service that has the label: the group would keep all GPUs to itself.
    group |= {"labels": {"tier": "none"}}
    api.put("policies/default", _manifest("Policy", "default", {"groups": [group]}))
    _run(api)


def _manifest(kind: str, name: str, spec: object) -> object:
    return {"kind": kind, "metadata": {"name": name}, "spec": spec}


def _run(api: Api) -> None:
    """A plan comes into force, is followed for ten minutes, and a task of THEIRS fails with the end of its log."""
    _observe(api, 1)
    assert api.tick().state == "target"
    api.clock.advance(600.0)
    _observe(api, 2, problems=[f"task zebra-train failed: {LOG_TAIL}"])
    api.tick()


def _observe(api: Api, sequence: int, **fields: object) -> None:
    answer = api.sync(
        sequence=sequence,
        window_start_s=api.clock.now_s() - 2.0,
        services=[reading("ours"), reading("zebra-chat")],
        **fields,
    )
    assert answer.status_code == 200, answer.text


def _ask(api: Api, operation: str, request: Request, caller: Caller) -> tuple[int, str]:
    answer = api.call(
        cast(Method, operation.split()[0]),
        PREFIX + request.path,
        request.body,
        token=caller.token,
        **request.headers,
    )
    # What a request names its answer may repeat, in `instance` and in the sentence about it.
    text = answer.text
    for named in (*request.path.split("/"), *request.names):
        text = text.replace(named, "") if len(named) > 1 else text
    return answer.status_code, text


def _found(text: str) -> list[str]:
    return [marker for marker in MARKERS if marker in text]


def test_every_operation_has_its_row_in_the_table() -> None:
    """A new operation fails here until somebody decides who may call it."""
    paths = make_api().openapi()["paths"]
    operations = {
        f"{method.upper()} {path.removeprefix(PREFIX)}"
        for path, methods in paths.items()
        for method in methods
        if path.startswith(PREFIX)
    }
    assert operations == set(ACCESS)
    outside = {path for path in paths if not path.startswith(PREFIX)}
    assert outside <= {path.partition("?")[0] for path in PUBLIC}


def test_every_route_declares_the_rule_of_the_table() -> None:
    declared = {}
    for module in RESOURCES:
        for route in module.router.routes:
            assert isinstance(route, APIRoute)
            (method,) = route.methods
            declared[f"{method} {route.path}"] = [
                _rule(each) for each in who_may(route.dependant)
            ]
    assert declared == {name: [access.rule] for name, access in ACCESS.items()}


def _rule(allowed: Allowed) -> Rule:
    above = [
        scope
        for scope, rank in RANK.items()
        if allowed.min_scope is not None and rank >= RANK[allowed.min_scope]
    ]
    return Rule(
        scopes=tuple(sorted({*allowed.scopes, *above}, key=ORDER.index)),
        everywhere=allowed.everywhere,
    )


@pytest.mark.parametrize("operation", ACCESS)
def test_each_token_is_let_in_where_the_table_says_and_bound_ones_learn_nothing_of_others(
    api: Api, operation: str
) -> None:
    access = ACCESS[operation]
    found, wanted, told = {}, {}, {}
    for caller in CALLERS:
        found[caller.token], text = _ask(api, operation, access.own, caller)
        told[caller.token] = _found(text)
        is_allowed = access.rule.allows(caller)
        wanted[caller.token] = access.own.status if is_allowed else 403
        # Of a token that is bound to nothing it is so, or nothing would be hidden from the others.
        assert caller.is_bound is False or told[caller.token] == [], caller
    assert found == wanted
    assert bool(told["admin"]) is access.tells, told
    assert _refused(api, operation, access.own) == NO_TOKENS
    # Objects of other projects are not there for bound tokens.
    for caller, request in itertools.product(BOUND, access.others):
        status, text = _ask(api, operation, request, caller)
        assert status == (request.status if access.rule.allows(caller) else 403)
        assert _found(text) == [], (caller, request)


def test_a_bound_token_finds_all_that_is_its_own(api: Api) -> None:
    for folder, own in (
        ("services", ["ours"]),
        ("tasks", ["our-ended", "our-task"]),
        ("projects", [OURS]),
        ("budgets", ["our-budget"]),
    ):
        assert api.names(folder, token="bound-viewer") == own


def _refused(api: Api, operation: str, request: Request) -> tuple[str | None, ...]:
    """Which of those without a valid token get 401."""
    method = cast(Method, operation.split()[0])
    path = PREFIX + request.path if operation in ACCESS else request.path
    return tuple(
        token
        for token in NO_TOKENS
        if api.status(method, path, request.body, token=token) == 401
    )


@pytest.mark.parametrize("report", REPORTS)
def test_a_report_is_cut_down_to_the_projects_of_a_token_or_refused(
    api: Api, report: str
) -> None:
    for path in (f"/reports/{report}", f"/reports/{report}/export"):
        status, text = _ask(api, f"GET {path}", Request(path=path), VIEWER)
        assert status == (403 if report in CLUSTER_REPORTS else 200), path
        assert _found(text) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_carries_no_data_of_other_projects(
    api: Api, page: DashboardPage
) -> None:
    argument = ARGUMENTS.get(page.name, "")
    address = _address(page)
    for caller in BOUND:
        answer = api.call("GET", address, token=caller.token)
        assert answer.status_code == (200 if caller.scope in RANKED else 403)
        # The page says what it was asked about.
        assert _found(answer.text.replace(argument or "/", "")) == [], caller


def _address(page: DashboardPage) -> str:
    return re.sub(r"\{.*\}", ARGUMENTS.get(page.name, ""), page.address)


def test_every_route_beside_the_api_is_a_page_or_in_the_table(api: Api) -> None:
    found = {
        f"{method} {route.path}"
        for route in cast(FastAPI, api.client.app).routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
        # The API's own short way is in its document, and files are everybody's.
        if not route.path.startswith((PREFIX, PUBLIC_PREFIX))
    }
    pages = {f"GET {page.address}" for page in PAGES}
    public = {f"GET {path}" for path in PUBLIC}
    assert found - public == pages | LOGIN | set(BESIDE)


def test_pages_are_for_people_with_a_valid_token(api: Api) -> None:
    pages = {f"GET {page.address}": Request(path=_address(page)) for page in PAGES}
    for operation, request in (pages | dict(BESIDE)).items():
        method = cast(Method, operation.split()[0])
        for caller in CALLERS:
            answer = api.call(method, request.path, token=caller.token)
            wanted = request.status if caller.scope in RANKED else 403
            assert answer.status_code == wanted, (operation, caller)
        assert _refused(api, operation, request) == NO_TOKENS, operation


@pytest.mark.parametrize("path", PUBLIC)
def test_what_is_public_names_nobodys_objects(api: Api, path: str) -> None:
    answer = api.call("GET", path, token=None)
    assert answer.status_code == 200
    assert _found(answer.text) == []


def test_a_spent_budget_of_the_cluster_does_not_tell_what_others_spent(
    api: Api,
) -> None:
    spec = {"period": "day", "usd": "0.01", "action": "block_new"}
    name = "everybodys-purse"
    kept = api.get(f"budgets/{name}")
    api.put(f"budgets/{name}", _manifest("Budget", name, spec))
    for kind, body in (("services", service), ("tasks", task)):
        wanted = body("ours-too", project=OURS)
        answer = api.call("PUT", f"{kind}/ours-too", wanted, token="bound-operator")
        assert answer.status_code == 409
        assert "a budget of the whole cluster accepts nothing new" in answer.text
        assert _found(answer.text) == [] and "USD" not in answer.text
    api.put(f"budgets/{name}", _manifest("Budget", name, kept["spec"]))


def test_a_deleted_name_cannot_be_taken_over_with_its_history(api: Api) -> None:
    assert api.status("DELETE", "services/zebra-gone", If_Match="*") == 204
    wanted = service("zebra-gone", project=OURS)
    for token in ("bound-operator", "admin"):
        answer = api.call("PUT", "services/zebra-gone", wanted, token=token)
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
        assert "belongs to another project" in answer.text
        assert THEIRS not in answer.text.replace("zebra-gone", "")
    back = service("zebra-gone", project=THEIRS)
    answer = api.call("PUT", "services/zebra-gone", back, token="zebra-token")
    assert (answer.status_code, answer.json()["metadata"]["generation"]) == (201, 2)


def test_an_idempotency_key_gives_nobody_the_answer_of_another_token(api: Api) -> None:
    def cancel(token: str) -> tuple[int, str]:
        answer = api.call(
            "POST", "tasks/zebra-ended/cancel", token=token, Idempotency_Key="key-1"
        )
        return answer.status_code, answer.text

    assert cancel("zebra-token")[0] == 200
    assert cancel("bound-operator")[0] == 404
    assert cancel("zebra-token")[0] == 200
