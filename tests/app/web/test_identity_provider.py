"""What a provider answers that is no provider's answer is told as such; `test_single_sign_on.py` has a real one."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey
from pydantic import SecretStr

from app.base.errors import Unavailable
from app.base.sign_on import SignOnTerms
from app.web.identity_provider import IdentityProvider, LoginAttempt
from tests.waiting import run


class Provider(BaseHTTPRequestHandler):
    """Answers with what it was given, by path."""

    answers: ClassVar[dict[str, object]] = {}

    def do_GET(self) -> None:
        body = json.dumps(self.answers[self.path]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def serving() -> Iterator[str]:
    """The address of a provider."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("user_info", [[], "none", None])
def test_user_info_that_is_no_object_is_the_providers_fault(user_info: object) -> None:
    attempt = LoginAttempt.begin("/fleet", "")
    key = RSAKey.generate_key(2048, {"kid": "1"})
    with serving() as issuer:
        claims = {
            "iss": issuer,
            "aud": "plimsoll",
            "sub": "alice",
            "iat": int(time.time()),
            "exp": int(time.time()) + 600,
            "nonce": attempt.derived("nonce"),
        }
        signed = jwt.encode({"alg": "RS256", "kid": "1"}, claims, key)
        token = {"access_token": "a", "token_type": "Bearer", "id_token": signed}
        Provider.answers = {
            "/.well-known/openid-configuration": {
                "issuer": issuer,
                "token_endpoint": f"{issuer}/token",
                "jwks_uri": f"{issuer}/keys",
                "userinfo_endpoint": f"{issuer}/me",
            },
            "/token": token,
            "/keys": {"keys": [key.as_dict(private=False)]},
            "/me": user_info,
        }
        terms = SignOnTerms(
            public_url="http://testserver",
            issuer=issuer,
            client_id="plimsoll",
            client_secret=SecretStr("secret"),
            groups_claim="groups",
            grants={},
        )

        async def log_in() -> None:
            with pytest.raises(Unavailable, match="does not answer like an identity"):
                await IdentityProvider(terms).person("code", attempt)

        run(log_in())
