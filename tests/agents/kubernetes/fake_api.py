"""A fake of the Kubernetes API with Pods alone, for tests that run against it and against a real server alike.

What it does is what the agent depends on: list and watch with versions, bookmarks and 410; 409 for a name that is taken
and for another uid; deletion in two steps; a token; a Pod that goes to the node of its affinity. And what the control
plane depends on: tokens of service accounts, and whose they are.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from aiohttp import web

Object = dict[str, Any]
NAMESPACE = "plimsoll-replicas"
PODS = "/api/v1/namespaces/{namespace}/pods"
ACCOUNT = "/api/v1/namespaces/{namespace}/serviceaccounts/{name}"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"


@dataclass(slots=True)
class FakeApi:
    """One server. Whoever knows `token` may do everything."""

    token: str = "secret"
    url: str = ""
    pods: dict[str, Object] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    """Method and path of every request."""
    is_away: bool = False
    """Every request is answered 503, and every watch ends."""
    forgets_before: int = 0
    """Watches from before that version are answered 410."""
    tokens: dict[str, Object] = field(default_factory=dict)
    """Of service accounts: what a review of them says."""
    loop: asyncio.AbstractEventLoop | None = None
    """Where it runs, for those who are in another thread."""
    _version: int = 100
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _log: list[tuple[int, str, Object]] = field(default_factory=list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["FakeApi"]:
        app = web.Application(middlewares=[self._check])
        app.router.add_get("/api/v1/pods", self._list)
        app.router.add_get(PODS, self._list)
        app.router.add_post(PODS, self._create)
        app.router.add_get(f"{PODS}/{{name}}", self._get)
        app.router.add_delete(f"{PODS}/{{name}}", self._delete)
        app.router.add_patch(f"{PODS}/{{name}}/status", self._patch)
        app.router.add_post(f"{ACCOUNT}/token", self._make_token)
        app.router.add_post(REVIEWS, self._review)
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
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return failure(401, "Unauthorized")
        if request.match_info.get("namespace", NAMESPACE) != NAMESPACE:
            return failure(404, "namespaces not found")
        answer: web.StreamResponse = await handler(request)
        return answer

    def _note(self, kind: str, pod: Object) -> None:
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        self._log.append((self._version, kind, json.loads(json.dumps(pod))))
        self._wake()

    async def _create(self, request: web.Request) -> web.Response:
        pod = await request.json()
        name = pod["metadata"]["name"]
        if name in self.pods:
            return failure(409, f'pods "{name}" already exists')
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        pod["metadata"] |= {"uid": str(uuid4()), "creationTimestamp": now}
        terms = pod["spec"]["affinity"]["nodeAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]["nodeSelectorTerms"]
        pod["spec"]["nodeName"] = terms[0]["matchFields"][0]["values"][0]
        pod["status"] = {"phase": "Pending"}
        self.pods[name] = pod
        self._note("ADDED", pod)
        return web.json_response(pod, status=201)

    async def _get(self, request: web.Request) -> web.Response:
        pod = self.pods.get(request.match_info["name"])
        return failure(404, "not found") if pod is None else web.json_response(pod)

    async def _delete(self, request: web.Request) -> web.Response:
        name, options = request.match_info["name"], await request.json()
        pod = self.pods.get(name)
        if pod is None:
            return failure(404, f'pods "{name}" not found')
        uid = options.get("preconditions", {}).get("uid", pod["metadata"]["uid"])
        if uid != pod["metadata"]["uid"]:
            return failure(409, "the UID in the precondition does not match")
        grace_s = options.get("gracePeriodSeconds")
        if grace_s is None:
            grace_s = pod["spec"].get("terminationGracePeriodSeconds", 30)
        if grace_s == 0:
            del self.pods[name]
            self._note("DELETED", pod)
        else:
            # In two steps: kubelet ends it, and then deletes with no grace.
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            pod["metadata"].setdefault("deletionTimestamp", now)
            pod["metadata"]["deletionGracePeriodSeconds"] = grace_s
            self._note("MODIFIED", pod)
        return web.json_response(pod)

    async def _patch(self, request: web.Request) -> web.Response:
        pod = self.pods.get(request.match_info["name"])
        if pod is None:
            return failure(404, "not found")
        pod["status"] |= (await request.json())["status"]
        self._note("MODIFIED", pod)
        return web.json_response(pod)

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
            "audiences": wanted["audiences"],
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
        items = [each for each in self.pods.values() if is_asked_for(each, request)]
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
            for at, kind, pod in [each for each in self._log if each[0] > version]:
                version = at
                if not is_asked_for(pod, request):
                    # Others' changes show as a version alone.
                    kind, pod = "BOOKMARK", {"metadata": {"resourceVersion": str(at)}}
                line = json.dumps({"type": kind, "object": pod}) + "\n"
                await response.write(line.encode())
            await changed.wait()


def is_asked_for(pod: Object, request: web.Request) -> bool:
    """By the selectors of the request, of which there is one at most."""
    key, _, value = request.query.get("labelSelector", "").partition("=")
    if key and pod["metadata"]["labels"].get(key) != value:
        return False
    key, _, value = request.query.get("fieldSelector", "").partition("=")
    return not key or pod["spec"].get("nodeName") == value


def failure(status: int, message: str) -> web.Response:
    """As the API server says it."""
    body = {"kind": "Status", "status": "Failure", "message": message, "code": status}
    return web.json_response(body, status=status)
