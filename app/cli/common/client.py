"""The control plane's REST API for the commands: JSON in, JSON out, and errors that a person can act on."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from itertools import islice
from types import TracebackType
from typing import TypeAlias
from urllib.parse import urlsplit
from uuid import uuid4

import httpx2

from app.base.proxies import Proxy, ProxyUnusable, find_proxy
from app.cli.common.context import CliContext
from app.cli.common.errors import (
    ApiProblem,
    CliError,
    ControlPlaneUnreachable,
    FieldFault,
)

Document: TypeAlias = dict[str, object]
"""A JSON object."""

Query: TypeAlias = Mapping[str, str | int | Sequence[str] | None]
"""Query parameters; those that are None are left out, those with several values are repeated."""

PAGE_LIMIT = 500
TIMEOUT = httpx2.Timeout(75.0, connect=5.0)
"""A fit may take 60 s, after which the control plane ends it and says so; a connection is there at once or never."""


def proxy_of(context: CliContext, url: str) -> Proxy | None:
    """The proxy that an address is asked through; None: directly. Raises CliError."""
    # The proxies of the machine must not apply to a test's transport.
    if context.transport is not None:
        return None
    try:
        return find_proxy(url, context.environment)
    except ProxyUnusable as error:
        raise CliError(str(error)) from error


def http_client(context: CliContext, url: str, proxy: Proxy | None) -> httpx2.Client:
    """A client for one address, through the proxy. Raises CliError."""
    try:
        return httpx2.Client(
            base_url=url,
            transport=context.transport,
            proxy=proxy.url if proxy else None,
            # The library itself would make a connection for each proxy that is named, needed or not, and would ask
            # those for this machine, too. Authorities of the environment are read all the same.
            trust_env=False,
            verify=httpx2.create_ssl_context() if url.startswith("https:") else True,
        )
    except (httpx2.InvalidURL, ValueError, OSError) as error:
        raise CliError(f"cannot ask {url}: {error}") from error


class Api:
    """A connection to the API. A context manager."""

    def __init__(self, context: CliContext) -> None:
        self._url = context.url()
        token = context.token()
        self._token_origin = token.origin
        # httpx would fail with a codec's message, long after the place where the token is from is known.
        if token.value is not None and not (
            token.value.isascii() and token.value.isprintable()
        ):
            raise CliError(f"the token has invalid characters (token: {token.origin})")
        address = self._url.value or ""
        if not address.startswith(("http://", "https://")):
            raise CliError(
                f"{address!r} ({self._url.origin}) is not an http:// or https:// address"
            )
        self._proxy = proxy_of(context, address)
        self._http = http_client(context, address.rstrip("/"), self._proxy)
        self._http.timeout = TIMEOUT
        if token.value:
            self._http.headers["Authorization"] = f"Bearer {token.value}"

    def __enter__(self) -> "Api":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def get(self, path: str, query: Query | None = None) -> Document:
        """One object. Raises ApiProblem, ControlPlaneUnreachable."""
        return self._document(self._call("GET", path, query=query))

    def find(self, path: str) -> tuple[Document, str | None] | None:
        """One object with its ETag, or None when there is none."""
        try:
            answer = self._call("GET", path)
        except ApiProblem as problem:
            if problem.status == httpx2.codes.NOT_FOUND:
                return None
            raise
        return self._document(answer), answer.headers.get("ETag")

    def items(self, path: str, query: Query | None = None) -> Iterator[Document]:
        """Every item of a list, over all its pages."""
        for page in self.pages(path, query or {}):
            yield from documents(page, "items")

    def pages(self, path: str, query: Query) -> Iterator[Document]:
        """Every page of a list or a report. Raises ApiProblem, ControlPlaneUnreachable."""
        cursor: str | None = None
        while True:
            # The query last: a caller that wants few items asks for small pages.
            page = self.get(path, {"limit": PAGE_LIMIT, "cursor": cursor, **query})
            yield page
            following = page.get("next_cursor")
            if not isinstance(following, str):
                return
            cursor = following

    def first(
        self, path: str, limit: int, query: Query | None = None
    ) -> list[Document]:
        """The first items of a list, at most `limit`."""
        return list(
            islice(
                self.items(path, {"limit": min(limit, PAGE_LIMIT), **(query or {})}),
                limit,
            )
        )

    def put(
        self, path: str, body: Document, *, etag: str | None, query: Query | None = None
    ) -> Document:
        """Create an object; or, with the ETag that was seen, replace it if it is still in that state."""
        # Lost updates: between reading and writing somebody else may have created or changed it.
        seen = {"If-Match": etag} if etag else {"If-None-Match": "*"}
        return self._document(
            self._call("PUT", path, body=body, query=query, headers=seen)
        )

    def post(
        self,
        path: str,
        body: Document | None = None,
        *,
        query: Query | None = None,
        limit_s: float | None = None,
    ) -> Document:
        """Ask for something to be done. Sends an Idempotency-Key, so that a proxy's repeat does it once.

        `limit_s`: when to give up, where that is sooner than for other requests.
        """
        headers = {"Idempotency-Key": uuid4().hex}
        return self._document(
            self._call(
                "POST", path, body=body, query=query, headers=headers, limit_s=limit_s
            )
        )

    def delete(self, path: str) -> None:
        """Delete an object, whatever state it is in."""
        self._call("DELETE", path, headers={"If-Match": "*"})

    def stream(self, path: str, query: Query) -> Iterator[str]:
        """Lines of an answer that does not end, as they come. Raises ApiProblem, ControlPlaneUnreachable."""
        given = {name: value for name, value in query.items() if value is not None}
        try:
            with self._http.stream("GET", path, params=given) as answer:
                # A stream's body is not read by itself, and the problem is in it.
                if not answer.is_success:
                    answer.read()
                    raise self._problem(answer)
                yield from answer.iter_lines()
        except httpx2.TransportError as error:
            raise self._unreachable(error) from error

    def probe(self, path: str) -> tuple[int, Document, datetime | None]:
        """Status, JSON and the server's clock of any answer, for health checks. Raises ControlPlaneUnreachable."""
        try:
            answer = self._http.get(path)
        except httpx2.TransportError as error:
            raise self._unreachable(error) from error
        date = answer.headers.get("Date")
        return (
            answer.status_code,
            _json_object(answer) or {},
            parsedate_to_datetime(date) if date else None,
        )

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Document | None = None,
        headers: Mapping[str, str] | None = None,
        limit_s: float | None = None,
    ) -> httpx2.Response:
        # The query of a request has no null: what is not asked for is left out.
        given = {
            name: value for name, value in (query or {}).items() if value is not None
        }
        content = None if body is None else json.dumps(body, allow_nan=False)
        sent = dict(headers or {})
        if content is not None:
            sent["Content-Type"] = "application/json"
        try:
            answer = self._http.request(
                method,
                path,
                params=given,
                content=content,
                headers=sent,
                timeout=_timeout(limit_s),
            )
        except httpx2.TransportError as error:
            raise self._unreachable(error, limit_s) from error
        except httpx2.InvalidURL as error:
            raise CliError(
                f"{self._url.value!r} ({self._url.origin}) is not an address: {error}"
            ) from error
        if answer.is_success:
            return answer
        raise self._problem(answer)

    def _unreachable(
        self, error: httpx2.TransportError, limit_s: float | None = None
    ) -> ControlPlaneUnreachable:
        url = f"{self._url.value} ({self._url.origin})"
        if self._proxy is not None:
            return _unreachable_through(self._proxy, url, error)
        # Only where nothing listens does it help to start one.
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            hint = "start one with `plimsoll up`, or set PLIMSOLL_URL to the address of a running one"
            return ControlPlaneUnreachable(
                f"no control plane answers at {url}: {error}", hint=hint
            )
        if isinstance(error, httpx2.TimeoutException):
            return ControlPlaneUnreachable(
                f"the control plane at {url} gave no answer in {_timeout(limit_s).read:.0f} s"
            )
        return ControlPlaneUnreachable(
            f"the connection to {url} was lost: {error or type(error).__name__}"
        )

    def _problem(self, answer: httpx2.Response) -> CliError:
        document = _json_object(answer)
        # A proxy's error page, or another program at this port.
        if document is None or "detail" not in document:
            return self._foreign(answer)
        detail = str(document["detail"])
        # There are four places where a token may come from; people look in the wrong one first.
        if answer.status_code == httpx2.codes.UNAUTHORIZED:
            detail = f"{detail} (token: {self._token_origin})"
        fields = tuple(
            FieldFault(
                place=str(entry.get("pointer") or entry.get("parameter") or ""),
                detail=str(entry.get("detail", "")),
                may_force=entry.get("may_force") is True,
            )
            for entry in documents(document, "errors")
        )
        return ApiProblem(
            answer.status_code, detail, fields, str(document.get("request_id", ""))
        )

    def _foreign(self, answer: httpx2.Response) -> CliError:
        proxy = self._proxy
        through = f", asked through the proxy {proxy.place}," if proxy else ""
        said = (
            f"{self._url.value}{through} answered {answer.status_code} {answer.reason_phrase} "
            "without a problem document"
        )
        error = CliError(said)
        # A proxy says so while the control plane behind it restarts, which passes.
        if answer.status_code >= httpx2.codes.INTERNAL_SERVER_ERROR:
            error = ApiProblem(answer.status_code, said, (), "")
        error.hint = "is this the address of Plimsoll? `plimsoll config show` shows where it comes from"
        if proxy:
            error.hint = _direct(self._url.value or "")
        return error

    def _document(self, answer: httpx2.Response) -> Document:
        document = _json_object(answer)
        if document is None:
            raise CliError(
                f"{self._url.value} did not answer {answer.request.url.path} with a JSON object"
            )
        return document


def _unreachable_through(
    proxy: Proxy, url: str, error: httpx2.TransportError
) -> ControlPlaneUnreachable:
    """People look for the fault at the address that they gave, not at the proxy that was asked for it."""
    return ControlPlaneUnreachable(
        f"the proxy {proxy.place} gave no answer of {url}: {error or type(error).__name__}",
        hint=_direct(url),
    )


def _direct(url: str) -> str:
    host = urlsplit(url.partition(" ")[0]).hostname
    return f"where no proxy is needed, add {host} to NO_PROXY"


def _timeout(limit_s: float | None) -> httpx2.Timeout:
    return (
        TIMEOUT if limit_s is None else httpx2.Timeout(limit_s, connect=TIMEOUT.connect)
    )


def _json_object(answer: httpx2.Response) -> Document | None:
    try:
        document = answer.json()
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def dig(document: object, path: str) -> object:
    """The value at a path of keys with dots between them; None where there is none."""
    for key in path.split("."):
        document = document.get(key) if isinstance(document, dict) else None
    return document


def documents(document: object, path: str) -> list[Document]:
    """The JSON objects of the array at a path of keys; an empty list for anything else."""
    return objects_of(dig(document, path))


def objects_of(value: object) -> list[Document]:
    """The JSON objects of an array; an empty list for anything else."""
    entries = value if isinstance(value, list) else []
    return [entry for entry in entries if isinstance(entry, dict)]


def text(document: object, path: str) -> str:
    """The text at a path of keys; empty where there is none."""
    value = dig(document, path)
    return "" if value is None else str(value)


def number(document: object, path: str) -> float | None:
    """The number at a path of keys, also one that is written as a decimal string; None where there is none."""
    value = dig(document, path)
    # A bool is an int in Python, and True would be counted as 1.
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None
