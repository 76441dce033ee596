"""A control plane in a dictionary, as far as the commands can tell; it answers as the real one documents."""

import hashlib
import json
from dataclasses import dataclass, field

import httpx2

Json = dict[str, object]
PREFIX = "/api/v1/"


@dataclass(slots=True)
class FakeApi:
    """Objects by path below /api/v1, answers to anything else, and the requests that came."""

    objects: dict[str, Json] = field(default_factory=dict)
    answers: dict[str, Json] = field(default_factory=dict)
    """By `METHOD path`, as a 200."""
    problems: dict[str, Json] = field(default_factory=dict)
    """By `METHOD path`, with their own status."""
    page_size: int = 500
    requests: list[httpx2.Request] = field(default_factory=list)

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        path = request.url.path.removeprefix(PREFIX)
        asked = f"{request.method} {path}"
        if asked in self.problems:
            problem = self.problems[asked]
            return httpx2.Response(int(str(problem["status"])), json=problem)
        if asked in self.answers:
            return httpx2.Response(200, json=self.answers[asked])
        if asked == "POST apply":
            return self._apply(request)
        if request.method == "PUT":
            return self._put(path, request)
        if path in self.objects:
            return self._one(path, request)
        if request.method == "GET" and "/" not in path:
            return self._list(path, request)
        return httpx2.Response(404, json=problem_document(404, f"there is no {path}"))

    def sent(self, method: str) -> list[Json]:
        """The bodies of all requests of a method."""
        return [
            json.loads(request.content)
            for request in self.requests
            if request.method == method
        ]

    def written(self, *, dry_run: bool = False) -> list[Json]:
        """The bundles that were to be kept; with `dry_run` those that were only checked."""
        return [
            json.loads(request.content)
            for request in self.requests
            if request.url.path == f"{PREFIX}apply"
            and (request.url.params.get("dry_run") == "true") is dry_run
        ]

    def header(self, method: str, name: str) -> list[str | None]:
        """One header of all requests of a method."""
        return [
            request.headers.get(name)
            for request in self.requests
            if request.method == method
        ]

    def _apply(self, request: httpx2.Request) -> httpx2.Response:
        bundle = json.loads(request.content)
        etags = bundle.pop("etags")
        written = {
            path_of(field, manifest): manifest
            for field, manifests in bundle.items()
            for manifest in manifests
        }
        for path in written:
            before = self.objects.get(path)
            if etags.get(path) != (None if before is None else etag(before)):
                words = f"{path}: the object has another ETag; read it again"
                return httpx2.Response(412, json=problem_document(412, words))
        if request.url.params.get("dry_run") != "true":
            self.objects |= written
        objects = [
            {"path": path, "object": {**manifest, "status": None}}
            for path, manifest in written.items()
        ]
        return httpx2.Response(200, json={"objects": objects})

    def _put(self, path: str, request: httpx2.Request) -> httpx2.Response:
        before, body = self.objects.get(path), json.loads(request.content)
        expected = None if before is None else etag(before)
        if request.headers.get("If-Match") != expected:
            words = "the object has another ETag; read it again"
            return httpx2.Response(412, json=problem_document(412, words))
        self.objects[path] = body
        return httpx2.Response(
            201 if before is None else 200, json={**body, "status": None}
        )

    def _one(self, path: str, request: httpx2.Request) -> httpx2.Response:
        if request.method == "DELETE":
            del self.objects[path]
            return httpx2.Response(204)
        return httpx2.Response(
            200, json=self.objects[path], headers={"ETag": etag(self.objects[path])}
        )

    def _list(self, path: str, request: httpx2.Request) -> httpx2.Response:
        items = [
            entry for key, entry in self.objects.items() if key.startswith(f"{path}/")
        ]
        start = int(request.url.params.get("cursor", "0"))
        end = start + min(self.page_size, int(request.url.params["limit"]))
        return httpx2.Response(
            200,
            json={
                "items": items[start:end],
                "next_cursor": str(end) if end < len(items) else None,
            },
        )


def path_of(field: str, manifest: Json) -> str:
    """Where an object of a bundle lies."""
    spec, metadata = manifest["spec"], manifest["metadata"]
    assert isinstance(spec, dict)
    assert isinstance(metadata, dict)
    name = (
        f"{spec['network']}/{spec['gpu_type']}"
        if field == "profiles"
        else metadata["name"]
    )
    return f"{field.replace('_', '-')}/{name}"


def etag(document: Json) -> str:
    """A hash of what users write."""
    written = {key: value for key, value in document.items() if key != "status"}
    return f'"{hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()[:16]}"'


def problem_document(
    status: int, detail: str, *, pointers: dict[str, str] | None = None
) -> Json:
    """An RFC 9457 problem."""
    errors = [
        {"pointer": pointer, "detail": words}
        for pointer, words in (pointers or {}).items()
    ]
    return {
        "status": status,
        "detail": detail,
        "code": "any",
        "request_id": "req-1",
        "errors": errors,
    }


def service(name: str = "chat", **status: object) -> Json:
    """A service as the API answers it."""
    return {
        "apiVersion": "plimsoll/v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "project": "default",
            "labels": {},
            "annotations": {},
            "generation": 1,
        },
        "spec": {
            "network": "bert",
            "slo": {"latency_ms": 50.0, "percentile": 0.98},
            "scaling": {
                "min_replicas": 0,
                "max_replicas": None,
                "upscale_delay_s": 0.0,
                "downscale_delay_s": 60.0,
                "buffer_replicas": 0,
            },
            "priority": 10.0,
            "gpu_types": {"allowed": None, "excluded": []},
            "mode": "auto",
        },
        "status": {
            "observed_generation": 1,
            "replicas": {"T4": 2, "V100": 1},
            "planned_rate_rps": 130.0,
            "reading": {
                "arrival_rate_rps": 118.25,
                "served_rps": 118.0,
                "latency_ms": 41.0,
                "attainment": 0.995,
                "age_s": 1.0,
            },
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "Serving",
                    "message": "3 replicas serve it",
                }
            ],
            **status,
        },
    }
