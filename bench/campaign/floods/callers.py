"""Whose tokens the fuzzed calls of the row `fuzz` come with, and which operations may let them in.

`is_let_in` reads what each route declares (`app.api.http.auth.Allowed`) and works out by itself which tokens that
allows. So it finds a route that lets in a token against its declaration, and one that declares nothing. It does not
find a wrong declaration: tests/integration/access_rules.py has a table to compare them with.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from fastapi import APIRouter
from fastapi.routing import APIRoute

from agents.base.protocol import DEFAULT_PROJECT
from app.api.application import PREFIX, RESOURCES
from app.api.http.auth import PUBLIC, Allowed, who_may
from app.base.scopes import PERSON_SCOPES
from app.db.operations.token_secrets import TokenOrder

CALLERS = (
    TokenOrder(name="viewer", scope="viewer"),
    TokenOrder(name="operator", scope="operator"),
    TokenOrder(name="bound", scope="operator", projects=(DEFAULT_PROJECT,)),
    TokenOrder(name="agent", scope="agent", node="n000"),
    TokenOrder(name="join", scope="join", uses_left=10_000),
)
"""Whose tokens some calls come with in place of the admin's; each reaches something that the fuzzer knows."""
NO_CALLERS = {"unknown": f"plim_admin_{'A' * 43}", "drawn": ""}
"""Secrets of no caller: one that is well formed, and whatever the fuzzer draws."""

Rules: TypeAlias = Mapping[str, tuple[Allowed, ...]]
"""By operation, such as `GET /api/v1/nodes/{name}`; all rules of one must hold."""

_VALID: Mapping[str, TokenOrder] = {
    each.name: each for each in (*CALLERS, TokenOrder(name="admin", scope="admin"))
}


def api_rules() -> Rules:
    """What the API's own routes declare."""
    return declared_rules(module.router for module in RESOURCES)


def declared_rules(routers: Iterable[APIRouter]) -> Rules:
    """What the routes declare of who may call them."""
    return {
        f"{method} {PREFIX}{route.path_format}": who_may(route.dependant)
        for router in routers
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }


def is_let_in(who: str, method: str, path: str, rules: Rules) -> bool:
    """Whether an operation may answer 2xx to that kind of token.

    `path`: the operation's, with its parameters' names.
    """
    if path in PUBLIC:
        return True
    caller, declared = _VALID.get(who), rules.get(f"{method} {path}", ())
    # What declares no rule is open to no one: a forgotten rule must not pass for one that lets everybody in.
    if caller is None or not declared:
        return False
    return all(_allows(each, caller) for each in declared)


def _allows(rule: Allowed, caller: TokenOrder) -> bool:
    """Not by the rule's own check, which is what the calls put to the test."""
    scopes = set(rule.scopes)
    if rule.min_scope is not None:
        scopes.update(PERSON_SCOPES[PERSON_SCOPES.index(rule.min_scope) :])
    is_too_narrow = rule.everywhere and caller.projects is not None
    return caller.scope in scopes and not is_too_narrow
