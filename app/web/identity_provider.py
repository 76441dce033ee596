"""The identity provider: OpenID Connect's authorization code flow with PKCE, state and nonce. Nothing is kept of it.

A browser that begins a login gets a cookie with a random secret. State, nonce and the PKCE verifier are hashes of it,
so that every API process can finish what another began, and a code or an ID token is worth nothing in another browser.
"""

import asyncio
import hashlib
import hmac
import os
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlencode, urlsplit

import httpx2
import structlog
from authlib.integrations.base_client import OAuthError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet, KeySetSerialization
from joserfc.jws import JWSRegistry

from app.api.http.fairness import FairSeats, SeatRules
from app.base.errors import Unauthorised, Unavailable
from app.base.proxies import find_proxy
from app.base.sign_on import SignOnTerms, is_protected
from solvers.types.state import Json

DISCOVERY = "/.well-known/openid-configuration"
CALLBACK = "/login/oidc/callback"
REMEMBERED_S = 3600.0
"""The provider's addresses and keys; a new key is fetched as soon as a token names it."""
ANSWERS_WITHIN_S = 10.0
LEEWAY_S = 30
"""Clocks of the two machines may differ by so much."""
ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
    | {"ES256", "ES384", "ES512", "EdDSA", "Ed25519"}
)
"""Signatures with a key of the provider's; providers announce `none` and the client's secret as well."""
PROVIDER_ERRORS = (
    *(httpx2.HTTPError, httpx2.InvalidURL, TimeoutError),
    # Of an answer that is no JSON, or lacks what the standard demands.
    *(ValueError, LookupError, TypeError),
)
MAX_GROUPS = 1000
MAX_NAME = 120
MAX_SUBJECT = 255
"""The standard's own limit."""
SEATS = SeatRules(
    # Everybody may begin a login, and each asks the provider.
    what="logins that ask the identity provider",
    seats=8,
    per_token=4,
    waiting=16,
    wait_s=10.0,
)

log = structlog.get_logger(__name__)

Metadata = Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginAttempt:
    """What a browser keeps between the beginning of a login and its end."""

    secret: str
    wanted: str
    """The page to go on to."""
    scope: str = ""
    """The one that the person chose among several; empty: the highest."""

    @classmethod
    def begin(cls, wanted: str, scope: str) -> "LoginAttempt":
        """An attempt with a fresh 256-bit secret."""
        return cls(secret=secrets.token_urlsafe(32), wanted=wanted, scope=scope)

    @classmethod
    def parse(cls, cookie: str) -> "LoginAttempt | None":
        """The one in a cookie; None: that is none of ours."""
        found = re.fullmatch(r"([\w-]{43})\.([a-z]*)\.([\w-]*)", cookie, re.ASCII)
        if found is None:
            return None
        try:
            wanted = urlsafe_b64decode(found[3] + "==").decode()
        except ValueError:
            return None
        return cls(secret=found[1], scope=found[2], wanted=wanted)

    @property
    def cookie(self) -> str:
        """As the browser keeps it."""
        wanted = urlsafe_b64encode(self.wanted.encode()).decode().rstrip("=")
        return f"{self.secret}.{self.scope}.{wanted}"

    def derived(self, purpose: str) -> str:
        """43 characters that only this browser can know or make; others for each purpose."""
        digest = hashlib.sha256(f"{purpose} {self.secret}".encode()).digest()
        return urlsafe_b64encode(digest).decode().rstrip("=")

    def has_state(self, state: str) -> bool:
        """Whether an answer belongs to this attempt."""
        return hmac.compare_digest(state.encode(), self.derived("state").encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody whom the provider knows."""

    name: str
    """With the subject, which never changes; the rest may be its owner's to choose."""
    groups: tuple[str, ...]


class IdentityProvider:
    """The provider of the settings. Its methods raise Unavailable, with the remedy, where it does not answer."""

    def __init__(self, terms: SignOnTerms) -> None:
        """Raises ProxyUnusable where the environment names a proxy for it that cannot be asked."""
        self.terms = terms
        self._proxy = find_proxy(terms.issuer, os.environ)
        self.seats = FairSeats(SEATS)
        self._metadata: Metadata = {}
        self._until_s = 0.0
        self._keys: KeySet | None = None
        # Once: reading the authorities takes tens of milliseconds, and everybody may begin a login.
        self._tls = httpx2.create_ssl_context()

    async def login_url(self, attempt: LoginAttempt) -> str:
        """Where a browser logs in."""
        async with self._client() as client:
            metadata = await self._discover(client)
            url, _ = client.create_authorization_url(
                _endpoint(metadata, "authorization_endpoint"),
                state=attempt.derived("state"),
                nonce=attempt.derived("nonce"),
                code_verifier=attempt.derived("verifier"),
                scope=" ".join(self._scopes(metadata)),
            )
        return str(url)

    async def person(self, code: str, attempt: LoginAttempt) -> Person:
        """Whom a code stands for. Raises Unauthorised for one that is used, expired or another browser's."""
        with self._errors_explained():
            async with asyncio.timeout(ANSWERS_WITHIN_S), self._client() as client:
                metadata = await self._discover(client)
                methods = metadata.get("token_endpoint_auth_methods_supported")
                # The standard's default is the header; few providers take the form alone.
                if isinstance(methods, list) and "client_secret_basic" not in methods:
                    client.token_endpoint_auth_method = "client_secret_post"
                answer = await client.fetch_token(
                    _endpoint(metadata, "token_endpoint"),
                    grant_type="authorization_code",
                    code=code,
                    code_verifier=attempt.derived("verifier"),
                )
                claims = await self._claims(client, metadata, answer, attempt)
                groups = await self._groups(client, metadata, claims)
        return Person(name=_name(claims), groups=groups)

    async def logout_url(self) -> str | None:
        """Where a browser logs out at the provider, too; None where that offers it not, or does not answer."""
        try:
            async with self._client() as client:
                metadata = await self._discover(client)
                end = _endpoint(metadata, "end_session_endpoint")
        except Unavailable:
            return None
        back = f"{self.terms.public_url}/login"
        query = {"client_id": self.terms.client_id, "post_logout_redirect_uri": back}
        return f"{end}{'&' if '?' in end else '?'}{urlencode(query)}"

    async def check_issuer(self, issuer: str | None) -> None:
        """Raise Unauthorised for an answer that names another sender; not every provider names itself (RFC 9207)."""
        async with self._client() as client:
            metadata = await self._discover(client)
        if issuer is not None and issuer != metadata["issuer"]:
            raise Unauthorised("This answer came from another provider: log in again.")

    def _client(self) -> AsyncOAuth2Client:
        return AsyncOAuth2Client(
            client_id=self.terms.client_id,
            client_secret=self.terms.client_secret.get_secret_value(),
            redirect_uri=self.terms.public_url + CALLBACK,
            code_challenge_method="S256",
            timeout=ANSWERS_WITHIN_S / 2.0,
            verify=self._tls,
            proxy=self._proxy.url if self._proxy else None,
            # The library would ask the environment's proxies for this machine, too.
            trust_env=False,
        )

    async def _discover(self, client: AsyncOAuth2Client) -> Metadata:
        """What the provider says of itself, from memory for an hour."""
        now_s = asyncio.get_running_loop().time()
        if self._until_s > now_s:
            return self._metadata
        with self._errors_explained():
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                found = await _load(client, self.terms.issuer.rstrip("/") + DISCOVERY)
        issuer = _printable(str(found.get("issuer")))
        # A slash at the end is easily forgotten; anything else may be another provider behind the same address.
        if issuer.rstrip("/") != self.terms.issuer.rstrip("/"):
            raise Unavailable(
                f"{self.terms.host} identifies itself as {issuer}; PLIMSOLL_OIDC_ISSUER must be the same."
            )
        self._metadata, self._keys = found, None
        self._until_s = now_s + REMEMBERED_S
        return found

    async def _claims(
        self,
        client: AsyncOAuth2Client,
        metadata: Metadata,
        answer: Mapping[str, str],
        attempt: LoginAttempt,
    ) -> CodeIDToken:
        """What the ID token says, whose signature, issuer, audience, times and nonce are right. Raises JoseError."""
        # A library's own list would be the provider's, which may have `none` in it.
        registry = JWSRegistry(algorithms=sorted(ALGORITHMS), strict_check_header=False)
        encoded = answer.get("id_token", "")
        try:
            keys = self._keys or await self._load_keys(client, metadata)
            decoded = jwt.decode(encoded, keys, registry=registry)
        except InvalidKeyIdError:
            # The provider has a new key.
            keys = await self._load_keys(client, metadata)
            decoded = jwt.decode(encoded, keys, registry=registry)
        claims = CodeIDToken(
            decoded.claims,
            decoded.header,
            {
                "iss": {"essential": True, "value": metadata["issuer"]},
                "aud": {"essential": True, "value": self.terms.client_id},
            },
            {
                "nonce": attempt.derived("nonce"),
                "client_id": self.terms.client_id,
                "access_token": answer.get("access_token"),
            },
        )
        claims.validate(leeway=LEEWAY_S)
        return claims

    async def _load_keys(self, client: AsyncOAuth2Client, metadata: Metadata) -> KeySet:
        found = await _load(client, _endpoint(metadata, "jwks_uri"))
        self._keys = KeySet.import_key_set(cast(KeySetSerialization, found))
        return self._keys

    async def _groups(
        self, client: AsyncOAuth2Client, metadata: Metadata, claims: CodeIDToken
    ) -> tuple[str, ...]:
        """The groups that the ID token lists; else what the provider tells about its subject when it is asked."""
        found = claims.get(self.terms.groups_claim)
        if found is None and "userinfo_endpoint" in metadata:
            url = _endpoint(metadata, "userinfo_endpoint")
            user_info = await _load(client, url, withhold_token=False)
            # Another person's must not be taken for this one's.
            if user_info.get("sub") == claims["sub"]:
                found = user_info.get(self.terms.groups_claim)
        listed = found if isinstance(found, list) else [found]
        return tuple(each for each in listed[:MAX_GROUPS] if isinstance(each, str))

    def _scopes(self, metadata: Metadata) -> list[str]:
        """What to ask for: some providers refuse a login for a scope that they do not have."""
        offered = metadata.get("scopes_supported")
        known = offered if isinstance(offered, list) else []
        optional = dict.fromkeys(("profile", "email", self.terms.groups_claim))
        return ["openid", *(scope for scope in optional if scope in known)]

    @contextmanager
    def _errors_explained(self) -> Iterator[None]:
        """Say what is wrong in words for people; the provider's own go to the log."""
        host = self.terms.host
        try:
            yield
        except JoseError as error:
            self._log(error)
            raise Unauthorised(
                f"{host} sent an ID token that is not valid ({_printable(str(error))}). Log in again; if that does not "
                "help, compare the clocks of both machines."
            ) from error
        except OAuthError as error:
            self._log(error)
            if error.error == "invalid_grant":
                raise Unauthorised(
                    "This login was already used or took too long: log in again."
                ) from error
            raise Unavailable(
                f"{host} refuses this control plane ({_printable(str(error.error))}): check PLIMSOLL_OIDC_CLIENT_ID "
                "and PLIMSOLL_OIDC_CLIENT_SECRET, and that client at the provider."
            ) from error
        except PROVIDER_ERRORS as error:
            self._log(error)
            raise Unavailable(
                f"{host} does not answer like an identity provider ({type(error).__name__}). Try again, or log "
                "in with a token."
            ) from error

    def _log(self, error: Exception) -> None:
        # What is sent to it stands in bodies and headers, never in an error's text.
        log.warning(
            "a login at the identity provider failed",
            provider=self.terms.host,
            problem=_printable(f"{type(error).__name__}: {error}"),
        )


async def _load(
    client: AsyncOAuth2Client, url: str, *, withhold_token: bool = True
) -> Metadata:
    # Without a token: the provider's addresses and keys are for everybody.
    answer = await client.request("GET", url, withhold_token=withhold_token)
    found: object = answer.raise_for_status().json()
    if not isinstance(found, dict):
        raise TypeError(f"{url} does not answer with a JSON object")
    return found


def _endpoint(metadata: Metadata, name: str) -> str:
    """One of the provider's addresses. Raises Unavailable where there is none, or others could listen."""
    url = metadata.get(name)
    parts = urlsplit(url if isinstance(url, str) else "")
    if is_protected(parts):
        return parts.geturl()
    raise Unavailable(f"the identity provider announces no {name} with https://")


def _name(claims: CodeIDToken) -> str:
    """Who it is, as the audit shall name them."""
    subject = _printable(str(claims["sub"]), limit=MAX_SUBJECT)
    for claim in ("preferred_username", "email", "name"):
        called = _printable(str(claims.get(claim) or ""))
        if called and called != subject:
            return f"{called} ({subject})"
    return subject


def _printable(text: str, *, limit: int = MAX_NAME) -> str:
    """On one line of readable length, whatever somebody put into it."""
    return "".join(each if each.isprintable() else "_" for each in text[:limit])
