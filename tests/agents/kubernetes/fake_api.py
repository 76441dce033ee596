"""A fake of the Kubernetes API, for tests that run against it and against a real server alike.

What it does is what agents and the control plane depend on: list and watch with versions, bookmarks and 410; 409 for a
name that is taken and for another uid; merge patches and server-side apply; finalizers; deletion of Pods in two steps;
a Pod that goes to the node of its affinity; a token of its own, tokens of service accounts, and whose they are.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import uuid4

from aiohttp import web

Object = dict[str, Any]
NAMESPACE = "plimsoll-replicas"
NAMESPACES = frozenset({NAMESPACE, "plimsoll", "default", "team-a", "team-b", "team-c"})
ROOT = "/{root:api/v1|apis/[^/]+/[^/]+}"
NAMESPACED = ROOT + "/namespaces/{namespace}/{resource}"
ALL = ROOT + "/{resource}"
ACCOUNT = "/api/v1/namespaces/{namespace}/serviceaccounts/{name}"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"


class Key(NamedTuple):
    """Which object."""

    root: str
    resource: str
    namespace: str
    name: str


@dataclass(slots=True)
class FakeApi:
    """One server. The holder of a token may do everything."""

    token: str = "secret"
    url: str = ""
    objects: dict[Key, Object] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    """Method and path of every request."""
    is_away: bool = False
    """Every request is answered 503, and every watch ends."""
    forgets_before: int = 0
    """Watches from before that version are answered 410."""
    refused: str = ""
    """A resource that no one has a right to."""
    tokens: dict[str, Object] = field(default_factory=dict)
    """Of service accounts: what a review of them says."""
    loop: asyncio.AbstractEventLoop | None = None
    """Where it runs, for those who are in another thread."""
    _version: int = 100
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _log: list[tuple[int, str, Key, Object]] = field(default_factory=list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["FakeApi"]:
        app = web.Application(middlewares=[self._check])
        app.router.add_post(f"{ACCOUNT}/token", self._make_token)
        app.router.add_post(REVIEWS, self._review)
        app.router.add_get("/apis/policy", self._versions)
        for collection in (NAMESPACED, ALL):
            app.router.add_get(collection, self._list)
            app.router.add_post(collection, self._create)
            app.router.add_get(f"{collection}/{{name}}", self._get)
            app.router.add_delete(f"{collection}/{{name}}", self._delete)
            app.router.add_patch(f"{collection}/{{name}}", self._patch)
            app.router.add_patch(f"{collection}/{{name}}/status", self._patch)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.loop = asyncio.get_running_loop()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            self.set_away(is_away=True)
            await runner.cleanup()

    def set_away(self, *, is_away: bool) -> None:
        self.is_away = is_away
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    @web.middleware
    async def _check(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        if self.is_away:
            return failure(503, "the server is away")
        sent = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if sent != self.token and sent not in self.tokens:
            return failure(401, "Unauthorized")
        if request.match_info.get("namespace", NAMESPACE) not in NAMESPACES:
            return failure(404, "namespaces not found")
        if request.match_info.get("resource") == self.refused:
            return failure(403, f"{self.refused} is forbidden")
        answer: web.StreamResponse = await handler(request)
        return answer

    def _note(self, kind: str, key: Key, one: Object) -> None:
        self._version += 1
        one["metadata"]["resourceVersion"] = str(self._version)
        self._log.append((self._version, kind, key, json.loads(json.dumps(one))))
        self._wake()

    async def _create(self, request: web.Request) -> web.Response:
        one = await request.json()
        key = key_of(request, one["metadata"]["name"])
        if key in self.objects:
            return failure(409, f'{key.resource} "{key.name}" already exists')
        return web.json_response(self._add(key, one), status=201)

    def _add(self, key: Key, one: Object) -> Object:
        one["metadata"] |= {"uid": str(uuid4()), "creationTimestamp": now()}
        one["metadata"]["generation"] = 1
        if key.namespace:
            one["metadata"]["namespace"] = key.namespace
        if key.resource == "pods":
            terms = one["spec"]["affinity"]["nodeAffinity"][
                "requiredDuringSchedulingIgnoredDuringExecution"
            ]["nodeSelectorTerms"]
            one["spec"]["nodeName"] = terms[0]["matchFields"][0]["values"][0]
            one["status"] = {"phase": "Pending"}
        self.objects[key] = one
        self._note("ADDED", key, one)
        return one

    async def _get(self, request: web.Request) -> web.Response:
        one = self.objects.get(key_of(request))
        return failure(404, "not found") if one is None else web.json_response(one)

    async def _delete(self, request: web.Request) -> web.Response:
        options = await request.json() if request.can_read_body else {}
        key = key_of(request)
        one = self.objects.get(key)
        if one is None:
            return failure(404, f'{key.resource} "{key.name}" not found')
        metadata = one["metadata"]
        if (
            options.get("preconditions", {}).get("uid", metadata["uid"])
            != metadata["uid"]
        ):
            return failure(409, "the UID in the precondition does not match")
        grace_s = options.get("gracePeriodSeconds")
        if grace_s is None and key.resource == "pods":
            grace_s = one["spec"].get("terminationGracePeriodSeconds", 30)
        if grace_s or metadata.get("finalizers"):
            # In two steps: a caller, as kubelet does with Pods, deletes once more or takes its finalizer away.
            metadata.setdefault("deletionTimestamp", now())
            metadata["deletionGracePeriodSeconds"] = grace_s or 0
            self._note("MODIFIED", key, one)
        else:
            self._remove(key, one)
        return web.json_response(one)

    def _remove(self, key: Key, one: Object) -> None:
        del self.objects[key]
        self._note("DELETED", key, one)

    async def _patch(self, request: web.Request) -> web.Response:
        patch, key = await request.json(), key_of(request)
        one = self.objects.get(key)
        if one is None:
            if "apply" not in request.content_type:
                return failure(404, f'{key.resource} "{key.name}" not found')
            return web.json_response(self._add(key, patch), status=201)
        if (
            patch.get("metadata", {}).get("uid", one["metadata"]["uid"])
            != one["metadata"]["uid"]
        ):
            return failure(409, "the object has another uid")
        before = json.dumps(one)
        spec = json.dumps(one.get("spec"))
        part = (
            {"status": patch["status"]} if request.path.endswith("/status") else patch
        )
        merge(one, part)
        # What changes nothing is no change.
        if json.dumps(one) != before:
            one["metadata"]["generation"] += json.dumps(one.get("spec")) != spec
            self._note("MODIFIED", key, one)
        is_ending = "deletionTimestamp" in one["metadata"] and key.resource != "pods"
        if is_ending and not one["metadata"].get("finalizers"):
            self._remove(key, one)
        return web.json_response(one)

    async def _versions(self, _: web.Request) -> web.Response:
        return web.json_response({"versions": [{"groupVersion": "policy/v1"}]})

    async def _make_token(self, request: web.Request) -> web.Response:
        wanted = (await request.json())["spec"]
        path = request.match_info
        pod = wanted.get("boundObjectRef", {})
        token = f"eyJhbGciOiJub25lIn0.{uuid4().hex}.fake"
        bound = {
            "authentication.kubernetes.io/pod-name": [pod.get("name")],
            "authentication.kubernetes.io/pod-uid": [pod.get("uid")],
        }
        self.tokens[token] = {
            "audiences": wanted.get("audiences", []),
            "user": {
                "username": f"system:serviceaccount:{path['namespace']}:{path['name']}",
                "extra": bound if pod else {},
            },
        }
        return web.json_response({"status": {"token": token}}, status=201)

    async def _review(self, request: web.Request) -> web.Response:
        asked = (await request.json())["spec"]
        known = self.tokens.get(asked["token"])
        if known is None or not set(known["audiences"]) & set(asked["audiences"]):
            return web.json_response({"status": {"error": "invalid bearer token"}})
        return web.json_response({"status": {"authenticated": True, **known}})

    async def _list(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._watch(request)
        items = [
            one for key, one in self.objects.items() if is_asked_for(key, one, request)
        ]
        metadata = {"resourceVersion": str(self._version)}
        return web.json_response({"metadata": metadata, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        version = int(request.query["resourceVersion"])
        if version < self.forgets_before:
            return failure(410, "too old resource version")
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionResetError):
            await self._tell(request, response, version)
        return response

    async def _tell(
        self, request: web.Request, response: web.StreamResponse, version: int
    ) -> None:
        while not self.is_away:
            changed = self._changed
            for at, kind, key, one in [each for each in self._log if each[0] > version]:
                version = at
                before = [
                    each[3] for each in self._log if each[2] == key and each[0] < at
                ]
                if not is_asked_for(key, one, request):
                    if before and is_asked_for(key, before[-1], request):
                        # For all who ask, it is gone.
                        kind = "DELETED"
                    else:
                        # Others' changes show as a version alone.
                        kind, one = (
                            "BOOKMARK",
                            {"metadata": {"resourceVersion": str(at)}},
                        )
                line = json.dumps({"type": kind, "object": one}) + "\n"
                await response.write(line.encode())
            await changed.wait()


def key_of(request: web.Request, name: str = "") -> Key:
    """Which object a request is about."""
    path = request.match_info
    return Key(
        path["root"],
        path["resource"],
        path.get("namespace", ""),
        name or path.get("name", ""),
    )


def is_asked_for(key: Key, one: Object, request: web.Request) -> bool:
    """By the collection of the request and its selectors."""
    wanted = key_of(request)
    if (key.root, key.resource) != wanted[:2] or wanted.namespace not in (
        "",
        key.namespace,
    ):
        return False
    labels = one["metadata"].get("labels", {})
    chosen = request.query.get("labelSelector", "")
    for each in filter(None, chosen.split(",")):
        name, _, value = each.partition("=")
        if labels.get(name) != value:
            return False
    name, _, value = request.query.get("fieldSelector", "").partition("=")
    return not name or one["spec"].get("nodeName") == value


def merge(one: Object, patch: Object) -> None:
    """By RFC 7396."""
    for name, value in patch.items():
        if value is None:
            one.pop(name, None)
        elif isinstance(value, dict) and isinstance(one.get(name), dict):
            merge(one[name], value)
        else:
            one[name] = value


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def failure(status: int, message: str) -> web.Response:
    """As the API server says it."""
    body = {"kind": "Status", "status": "Failure", "message": message, "code": status}
    return web.json_response(body, status=status)
