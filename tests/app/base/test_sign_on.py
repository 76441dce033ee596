"""What groups of an identity provider may do, and settings that cannot be meant."""

import pytest
from pydantic import ValidationError

from app.base.settings import Settings
from app.base.sign_on import grants_of, parse_grant

GOOD = {
    "public_url": "https://plimsoll.example.org",
    "oidc_issuer": "https://id.example.org/realms/main",
    "oidc_client_id": "plimsoll",
    "oidc_client_secret": "s3cret",
    "oidc_groups": {"sre": "admin"},
}


@pytest.mark.parametrize(
    ("held", "choices"),
    [
        ([], []),
        (["viewer"], ["viewer of all projects"]),
        (["operator@a", "operator@b"], ["operator of a, b"]),
        (["operator@a, b", "viewer@a"], ["operator of a, b"]),
        (["operator@a", "viewer"], ["operator of a", "viewer of all projects"]),
        (["operator@a", "viewer@b"], ["operator of a", "viewer of a, b"]),
        (["admin", "viewer"], ["admin of all projects"]),
        (
            ["admin@a", "operator@b", "viewer"],
            ["admin of a", "operator of a, b", "viewer of all projects"],
        ),
    ],
)
def test_groups_add_up(held: list[str], choices: list[str]) -> None:
    grants = {str(at): parse_grant(text) for at, text in enumerate(held)}
    for order in (list(grants), list(reversed(grants))):
        found = grants_of([*order, "unknown"], grants)
        assert [str(each) for each in found] == choices


@pytest.mark.parametrize("text", ["", "root", "agent", "viewer@", "viewer@a,,b", "@a"])
def test_what_is_no_scope_of_people_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="viewer, operator, admin"):
        parse_grant(text)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"oidc_issuer": "http://id.example.org"}, "https://"),
        ({"oidc_issuer": "id.example.org"}, "oidc_issuer"),
        ({"oidc_client_secret": None}, "oidc_client_secret"),
        ({"public_url": None}, "public_url"),
        ({"public_url": "https://example.org/plimsoll"}, "path"),
        ({"oidc_groups": {}}, "oidc_groups"),
        ({"oidc_groups": {"sre": "root"}}, "root"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_at_start(
    change: dict[str, object], told: str
) -> None:
    with pytest.raises(ValidationError, match=told) as refused:
        Settings(**{**GOOD, **change})
    assert "s3cret" not in str(refused.value)


def test_loopback_needs_no_tls_and_secrets_are_not_printed() -> None:
    settings = Settings(**{**GOOD, "oidc_issuer": "http://localhost:8081/"})
    assert settings.sign_on is not None
    assert settings.sign_on.host == "localhost:8081"
    assert "s3cret" not in str(settings.printable()) + repr(settings.sign_on)
