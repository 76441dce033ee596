# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "authlib==1.9.9",
#     "canaille[front,oidc,sqlite]==0.3.6",
#     "flask==3.1.3",
#     "joserfc==1.8.0",
#     "werkzeug==3.1.9",
#     "wtforms==3.3.2",
# ]
# ///
"""Canaille, an identity provider, with people, groups and clients; `uv run --script` gives it what it needs.

In an environment of its own, since its wheel brings a package `tests`. The command line is the control plane's public
address and an empty folder; the first line on stdout is the port. It serves until it is killed.
"""

import socket
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from threading import Lock
from wsgiref.types import StartResponse, WSGIEnvironment

from canaille import create_app
from canaille.app import models
from canaille.backends import Backend
from joserfc.jwk import OctKey, RSAKey
from werkzeug.serving import make_server

PEOPLE = {
    "alice": ("search-team",),
    "bob": ("search-team", "everybody"),
    "carol": ("accounting",),
    "dave": (),
}
CLIENTS = {
    "plimsoll": "RS256",
    # With a secret that both sides know, as a careless client may ask for.
    "careless": "HS256",
}
"""With the signature of their ID tokens; each client's secret is its name and "-secret"."""


def main(public_url: str, folder: str) -> None:
    """Serve."""
    keys = [RSAKey.generate_key(2048), OctKey.generate_key(256)]
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    app = create_app(
        config={
            # Without its own name this provider answers a wrong client secret with 500.
            "SERVER_NAME": f"localhost:{port}",
            "PREFERRED_URL_SCHEME": "http",
            "SECRET_KEY": "of a test",
            "CANAILLE": {
                # Not "memory", which takes any code of a client for the one that is asked for.
                "DATABASE": "sql",
                "SMTP": None,
                "ACL": {"DEFAULT": {"PERMISSIONS": ["use_oidc"]}},
            },
            "CANAILLE_SQL": {
                "DATABASE_URI": f"sqlite:///{folder}/identities.db",
                "PASSWORD_HASH_PARAMS": {"pbkdf2_sha512__rounds": 1000},
            },
            "CANAILLE_OIDC": {
                "ACTIVE_JWKS": [key.as_dict(private=True) for key in keys]
            },
        }
    )
    with app.app_context(), Backend.instance.session():
        fill(public_url)
    answer, turn, issued_s = app.wsgi_app, Lock(), 0

    def one_at_a_time(
        environ: WSGIEnvironment, start: StartResponse
    ) -> Iterable[bytes]:
        # SQLite refuses who writes while somebody else does. Connections still have a thread each: browsers open some
        # that they use later.
        nonlocal issued_s
        makes_token = environ["PATH_INFO"] == "/oauth/token"
        with turn:
            if makes_token:
                # Two access tokens of one person in the same second would be equal, which this provider cannot keep.
                while int(time.time()) <= issued_s:
                    time.sleep(0.02)
            answered = answer(environ, start)
            if makes_token:
                # The second in which it ended: a slow machine may have made the token in a later one than it began.
                issued_s = int(time.time())
            return answered

    server = make_server(
        "127.0.0.1", port, one_at_a_time, threaded=True, fd=listening.fileno()
    )
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    server.serve_forever()


def fill(public_url: str) -> None:
    """Make the people, their groups, and the clients."""
    save = Backend.instance.save
    members: dict[str, list[models.User]] = {}
    for name, groups in PEOPLE.items():
        user = models.User(
            user_name=name,
            formatted_name=name.title(),
            family_name=name.title(),
            emails=[f"{name}@example.org"],
            password=f"password of {name}",
        )
        save(user)
        for group in groups:
            members.setdefault(group, []).append(user)
    for group, users in members.items():
        save(models.Group(display_name=group, members=users))
    for name, algorithm in CLIENTS.items():
        client = models.Client(
            client_id=name,
            client_secret=f"{name}-secret",
            client_name=name,
            client_id_issued_at=datetime.now(UTC),
            # On loopback it is trusted: no one is asked whether they consent.
            client_uri="http://127.0.0.1/",
            redirect_uris=[f"{public_url}/login/oidc/callback"],
            post_logout_redirect_uris=[f"{public_url}/login"],
            grant_types=["authorization_code"],
            response_types=["code"],
            scope=["openid", "profile", "email", "groups"],
            token_endpoint_auth_method="client_secret_basic",
            id_token_signed_response_alg=algorithm,
        )
        save(client)
        # Known by then: its ID tokens are for itself.
        client.audience = [client]
        save(client)


if __name__ == "__main__":
    main(*sys.argv[1:])
