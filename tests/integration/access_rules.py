"""Who may call which operation of the API, and what it answers: the table that `test_api_access` holds the API to.

Requests change nothing: a write that is allowed stops at its body (422), at its precondition (412, 428) or at a name
that no object has (404), so that every caller finds the same cluster.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from app.base.scopes import Scope
from tests.integration.api_harness import NOW, SCOPES, service
from tests.integration.test_api_tasks import task

OURS, THEIRS = "team-a", "zebra"
"""The project that bound callers are bound to, and the one of which they must learn nothing."""

RANKED: tuple[Scope, ...] = ("viewer", "operator", "admin")
NOBODY = "/999999"
STALE = {"If_Match": '"stale"'}
ANY = {"If_Match": "*"}


WINDOW = {
    "source": "gateway",
    "window_start": (NOW + timedelta(seconds=590)).isoformat(),
    "window_s": 5.0,
    **dict.fromkeys(("arrivals", "served", "in_slo"), 1),
}
"""Ends when the clock of the tests has just passed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """One kind of token."""

    scope: Scope
    is_bound: bool

    @property
    def token(self) -> str:
        """Its name among the harness's secrets."""
        return f"bound-{self.scope}" if self.is_bound else self.scope


CALLERS = tuple(
    Caller(scope=scope, is_bound=is_bound)
    for scope in (*SCOPES, "join")
    for is_bound in (False, True)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Which tokens may call at all."""

    scopes: tuple[Scope, ...]
    everywhere: bool = False
    """Only tokens that are bound to no project."""

    def allows(self, caller: Caller) -> bool:
        """Whether a token of this kind is let in."""
        return caller.scope in self.scopes and not (self.everywhere and caller.is_bound)


ANYONE = Rule(scopes=SCOPES)
VIEWER = Rule(scopes=RANKED)
CLUSTER_VIEWER = Rule(scopes=RANKED, everywhere=True)
OPERATOR = Rule(scopes=RANKED[1:])
CLUSTER_OPERATOR = Rule(scopes=RANKED[1:], everywhere=True)
ADMIN = Rule(scopes=RANKED[2:], everywhere=True)
AGENT = Rule(scopes=("agent",))
JOINER = Rule(scopes=("join",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, and the status that those who may send it get."""

    path: str
    status: int = 200
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    """What the body names besides the path, which the answer may repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What one operation answers to whom."""

    rule: Rule
    own: Request
    """About the cluster, or an object of OURS."""
    others: tuple[Request, ...] = ()
    """About objects of THEIRS; the status is what a bound token gets that the rule allows."""
    tells: bool = False
    """Whether a token that is bound to nothing reads of THEIRS in the answer to `own`, so that hiding it is worth a
    test."""


def _read(rule: Rule, path: str, *, tells: bool = False, status: int = 200) -> Access:
    return Access(rule=rule, own=Request(path=path, status=status), tells=tells)


def _write(rule: Rule, path: str, status: int = 422) -> Access:
    """Refused for its body by default, which is looked at after the scope."""
    return Access(rule=rule, own=Request(path=path, status=status, body={}))


def _delete(rule: Rule, path: str, status: int = 412) -> Access:
    own = Request(path=path, status=status, headers=STALE)
    return Access(rule=rule, own=own)


def _objects(
    folder: str, ours: str, theirs: str, *, is_listed: bool = True
) -> dict[str, Access]:
    """A kind whose objects belong to projects: list, get, and nothing of another project's but that it is not there."""
    one, all_of = f"/{folder}/{ours}", f"/{folder}"
    return {
        f"GET {all_of}": Access(
            rule=VIEWER,
            own=Request(path=all_of),
            others=(Request(path=f"{all_of}?project={THEIRS}"),) if is_listed else (),
            tells=is_listed,
        ),
        f"GET {all_of}/{{name}}": Access(
            rule=VIEWER,
            own=Request(path=one),
            others=(Request(path=f"/{folder}/{theirs}", status=404),),
        ),
    }


def _logs(folder: str, ours: str, theirs: str) -> dict[str, Access]:
    """The logs of what runs for projects; no node is there that would answer."""
    return {
        f"GET /{folder}/{{name}}/logs": Access(
            rule=VIEWER,
            own=Request(path=f"/{folder}/{ours}/logs?tail=0", status=422),
            others=(Request(path=f"/{folder}/{theirs}/logs", status=404),),
        ),
    }


def _owned(
    folder: str, ours: str, theirs: str, body: Callable[[str, str], object]
) -> dict[str, Access]:
    """The writes of a kind that operators of a project own; `body` of a name and a project."""
    one, another = f"/{folder}/{ours}", f"/{folder}/{theirs}"
    return {
        f"PUT /{folder}/{{name}}": Access(
            rule=OPERATOR,
            own=Request(path=one, status=428, body=body(ours, OURS)),
            others=(
                # Names are unique in the cluster: that this one is taken is all that the answer may say.
                Request(path=another, status=409, body=body(theirs, OURS)),
                Request(path=another, status=412, body=body(theirs, OURS), headers=ANY),
                Request(
                    path=another,
                    status=403,
                    body=body(theirs, THEIRS),
                    names=(THEIRS,),
                ),
            ),
        ),
        f"DELETE /{folder}/{{name}}": Access(
            rule=OPERATOR,
            own=Request(path=one, status=412, headers=STALE),
            others=(Request(path=another, status=404, headers=STALE),),
        ),
    }


def _of_admin(folder: str, one: str, *, template: str = "{name}") -> dict[str, Access]:
    """The writes of a kind that only admins of the cluster make."""
    path = f"/{folder}/{one}"
    return {
        f"PUT /{folder}/{template}": _write(ADMIN, path),
        f"DELETE /{folder}/{template}": _delete(ADMIN, path),
    }


def _catalogue(folder: str, one: str) -> dict[str, Access]:
    """What all projects share and that no project's name is in."""
    return {
        f"GET /{folder}": _read(VIEWER, f"/{folder}"),
        f"GET /{folder}/{{name}}": _read(VIEWER, f"/{folder}/{one}"),
        **_of_admin(folder, one),
    }


WORKLOADS = {
    **_objects("services", "ours", "zebra-chat"),
    **_owned("services", "ours", "zebra-chat", service),
    "GET /endpoints": _read(VIEWER, "/endpoints", tells=True),
    "GET /services/{name}/endpoints": Access(
        rule=VIEWER,
        own=Request(path="/services/ours/endpoints"),
        others=(Request(path="/services/zebra-chat/endpoints", status=404),),
    ),
    "GET /services/{name}/forecast": Access(
        rule=VIEWER,
        own=Request(path="/services/ours/forecast"),
        others=(Request(path="/services/zebra-chat/forecast", status=404),),
    ),
    "GET /services/{name}/history": Access(
        rule=VIEWER,
        own=Request(path="/services/ours/history"),
        others=(Request(path="/services/zebra-chat/history", status=404),),
    ),
    "POST /services/{name}/telemetry": Access(
        rule=OPERATOR,
        own=Request(path="/services/ours/telemetry", status=422, body={}),
        others=(
            Request(path="/services/zebra-chat/telemetry", status=404, body=WINDOW),
        ),
    ),
    **_logs("services", "ours", "zebra-chat"),
    **_objects("tasks", "our-task", "zebra-train"),
    **_logs("tasks", "our-task", "zebra-train"),
    **_owned("tasks", "our-task", "zebra-train", task),
    "POST /tasks/{name}/cancel": Access(
        rule=OPERATOR,
        # Cancelled before: repeating it changes nothing.
        own=Request(path="/tasks/our-ended/cancel"),
        others=(Request(path="/tasks/zebra-train/cancel", status=404),),
    ),
    **_objects("projects", OURS, THEIRS),
    **_of_admin("projects", OURS),
    **_objects("budgets", "our-budget", "zebra-budget"),
    **_of_admin("budgets", "our-budget"),
}

FLEET = {
    "POST /nodes/{name}/sync": _write(AGENT, "/nodes/n1/sync"),
    "POST /nodes/{name}/logs/{request_id}": _write(AGENT, "/nodes/n1/logs/7f", 204),
    "POST /nodes/{name}/enrol": _write(JOINER, "/nodes/n1/enrol"),
    "GET /nodes": _read(CLUSTER_VIEWER, "/nodes", tells=True),
    "GET /nodes/{name}": _read(CLUSTER_VIEWER, "/nodes/n1", tells=True),
    **_of_admin("nodes", "n1"),
    "POST /nodes/{name}/cordon": _write(CLUSTER_OPERATOR, "/nodes/none/cordon", 404),
    "POST /nodes/{name}/acquit": _write(CLUSTER_OPERATOR, "/nodes/none/acquit", 404),
    "POST /nodes/{name}/drain": _write(CLUSTER_OPERATOR, "/nodes/none/drain", 404),
    "POST /nodes/{name}/undrain": _write(CLUSTER_OPERATOR, "/nodes/none/undrain", 404),
    "POST /nodes/{name}/uncordon": _write(
        CLUSTER_OPERATOR, "/nodes/none/uncordon", 404
    ),
    "GET /gpus": _read(CLUSTER_VIEWER, "/gpus"),
    "GET /gpus/{node}/{gpu}/readings": _read(CLUSTER_VIEWER, "/gpus/n1/gpu-0/readings"),
    **_catalogue("gpu-types", "T4"),
    **_catalogue("networks", "resnet50"),
    "GET /profiles": _read(VIEWER, "/profiles"),
    "GET /profiles/{network}/{gpu_type}": _read(VIEWER, "/profiles/resnet50/T4"),
    "PUT /profiles/{network}/{gpu_type}": _write(ADMIN, "/profiles/resnet50/T4"),
    "GET /networks/{name}/fits": _read(VIEWER, "/networks/resnet50/fits"),
    "GET /networks/{name}/fits/curves": _read(
        VIEWER, "/networks/resnet50/fits/curves?gpu_type=T4"
    ),
    "POST /networks/{name}/fit": _write(ADMIN, "/networks/none/fit", 404),
    "POST /networks/{name}/samples": _write(ADMIN, "/networks/resnet50/samples"),
    "DELETE /networks/{name}/samples": _delete(ADMIN, "/networks/none/samples", 404),
    "GET /fits/{fit_id}": _read(VIEWER, f"/fits{NOBODY}", status=404),
}

DECISIONS = {
    "GET /plans": _read(CLUSTER_VIEWER, "/plans", tells=True),
    "GET /plans/{plan_id}": _read(CLUSTER_VIEWER, "/plans/1", tells=True),
    "GET /plans/{plan_id}/diff": _read(CLUSTER_VIEWER, "/plans/1/diff", tells=True),
    "GET /plans/{plan_id}/explain": _read(VIEWER, "/plans/1/explain", tells=True),
    **{
        f"POST /plans/{{plan_id}}/{verb}": _write(
            CLUSTER_OPERATOR, f"/plans{NOBODY}/{verb}", 404
        )
        for verb in ("approve", "reject", "restore")
    },
    "POST /apply": Access(
        rule=OPERATOR,
        own=Request(path="/apply", status=422, body={"none": []}),
        others=(
            Request(
                path="/apply",
                status=403,
                body={"services": [service("zebra-chat", THEIRS)]},
                names=(THEIRS, "zebra-chat"),
            ),
        ),
    ),
    "POST /plans/preview": Access(
        rule=CLUSTER_OPERATOR,
        own=Request(path="/plans/preview", status=422, body={"without": ["none"]}),
        tells=True,
    ),
    "POST /plans/compare": Access(
        rule=CLUSTER_OPERATOR,
        own=Request(path="/plans/compare", status=422, body={"policies": ["none"]}),
    ),
    "GET /policies": _read(CLUSTER_VIEWER, "/policies", tells=True),
    "GET /policies/{name}": _read(CLUSTER_VIEWER, "/policies/default", tells=True),
    "GET /policies/{name}/versions": _read(
        CLUSTER_VIEWER, "/policies/default/versions", tells=True
    ),
    "PUT /policies/{name}": _write(ADMIN, "/policies/default"),
    "POST /policies/{name}/pause": _write(
        CLUSTER_OPERATOR, "/policies/none/pause", 404
    ),
    "POST /policies/{name}/resume": _write(
        CLUSTER_OPERATOR, "/policies/none/resume", 404
    ),
    "GET /simulations": _read(VIEWER, "/simulations"),
    "POST /simulations": _write(OPERATOR, "/simulations"),
    "GET /simulations/examples": _read(VIEWER, "/simulations/examples"),
    "DELETE /simulations/{simulation_id}": _delete(
        OPERATOR, f"/simulations{NOBODY}", 404
    ),
    **{
        f"GET /simulations/{{simulation_id}}{part}": _read(
            VIEWER, f"/simulations{NOBODY}{part}", status=404
        )
        for part in ("", "/report", "/report.json")
    },
}

REPORTS = {
    "GET /costs": _read(VIEWER, "/costs?by=project", tells=True),
    "GET /demand": _read(VIEWER, "/demand", tells=True),
    "GET /demand/{service}": Access(
        rule=VIEWER,
        own=Request(path="/demand/ours"),
        others=(Request(path="/demand/zebra-chat", status=404),),
    ),
    "GET /reports": _read(VIEWER, "/reports"),
    # Every report has its own test: which of them a bound token may read depends on the columns.
    "GET /reports/{name}": Access(
        rule=VIEWER,
        own=Request(path="/reports/cost_by_service_hour"),
        others=(Request(path=f"/reports/cost_by_service_hour?project={THEIRS}"),),
        tells=True,
    ),
    "GET /reports/{name}/export": _read(
        VIEWER, "/reports/cost_by_service_hour/export", tells=True
    ),
}

OPERATIONS = {
    "GET /auth/whoami": _read(ANYONE, "/auth/whoami"),
    "GET /events": _read(CLUSTER_VIEWER, "/events?limit=500", tells=True),
    "GET /metrics": _read(CLUSTER_VIEWER, "/metrics", tells=True),
    "GET /metrics/targets": _read(CLUSTER_VIEWER, "/metrics/targets"),
    "GET /tokens": _read(ADMIN, "/tokens", tells=True),
    "POST /tokens": _write(ADMIN, "/tokens"),
    "POST /tokens/{token_id}/rotate": Access(
        rule=ANYONE,
        own=Request(path="/tokens/tok-none/rotate", status=422, body={"grace": 1}),
        # Everybody rotates their own; of others there is nothing to learn, be they there or not.
        others=(Request(path="/tokens/tok-none/rotate", status=403, body={}),),
    ),
    "DELETE /tokens/{token_id}": _delete(ADMIN, "/tokens/tok-none", 404),
    "GET /webhooks": _read(ADMIN, "/webhooks", tells=True),
    "GET /webhooks/{name}": _read(ADMIN, "/webhooks/zebra-hook", tells=True),
    **_of_admin("webhooks", "zebra-hook"),
}

ACCESS: Mapping[str, Access] = {
    **WORKLOADS,
    **FLEET,
    **DECISIONS,
    **REPORTS,
    **OPERATIONS,
}
"""By method and path template under /api/v1."""

BESIDE: Mapping[str, Request] = {
    "GET /": Request(path="/"),
    # A stream that is let in does not end.
    "GET /live": Request(path="/live?topic=nonsense", status=422),
    "POST /new-service/yaml": Request(path="/new-service/yaml"),
    # It does not come from a page.
    "POST /logout": Request(path="/logout", status=403),
}
"""Routes of the dashboard for people that are no pages, and what those get who may look at pages."""

LOGIN = frozenset({"GET /login", "POST /login"})

PUBLIC = ("/livez", "/readyz?verbose", "/healthz", "/metrics", "/openapi.json", "/docs")
"""Answered without a token, and without a word about anybody's objects."""

CLUSTER_REPORTS = frozenset(
    {
        "bill_hour",
        "cost_by_gpu_type_hour",
        "cost_by_payment_hour",
        "use_hour",
        "gpu_utilisation_hour",
        "plan_history",
        "node_health",
        "fit_quality",
        "fit_health",
    }
)
"""Reports that cannot be cut down to projects, so that bound tokens do not read them at all."""
