"""Single sign-on: what the operator says of an identity provider, and what groups of it may do here."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from pydantic import SecretStr

from app.base.scopes import PERSON_SCOPES, PersonScope

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What one group may do."""

    scope: PersonScope
    projects: frozenset[str] | None = None
    """None: every project."""

    def __str__(self) -> str:
        if self.projects is None:
            return f"{self.scope} of all projects"
        return f"{self.scope} of {', '.join(sorted(self.projects))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignOnTerms:
    """An identity provider (OpenID Connect) by which people log in."""

    issuer: str
    """Its address, as it names itself in ID tokens."""
    client_id: str
    client_secret: SecretStr
    groups_claim: str
    """The claim that lists a person's groups."""
    grants: Mapping[str, Grant]
    """By group."""
    public_url: str
    """The dashboard's address, without a path."""

    @property
    def host(self) -> str:
        """The provider as people know it."""
        return urlsplit(self.issuer).netloc


def grants_of(groups: Iterable[str], grants: Mapping[str, Grant]) -> tuple[Grant, ...]:
    """What somebody of these groups may choose to log in as, the highest scope first; empty: nothing.

    Groups add up: a scope reaches the projects of all groups with this scope or a higher one. A lower scope is a choice
    only where it reaches more.
    """
    held = [grants[group] for group in groups if group in grants]
    choices: list[Grant] = []
    for scope in reversed(PERSON_SCOPES):
        # A person who may operate a project may look at it, too.
        enough = [
            each
            for each in held
            if PERSON_SCOPES.index(each.scope) >= PERSON_SCOPES.index(scope)
        ]
        if not enough:
            continue
        everywhere = any(each.projects is None for each in enough)
        projects = frozenset(name for each in enough for name in each.projects or ())
        choice = Grant(scope=scope, projects=None if everywhere else projects)
        # It reaches at least what the scope above does; where it is the same, there is no reason to choose it.
        if not choices or choices[-1].projects != choice.projects:
            choices.append(choice)
    return tuple(choices)


def parse_grant(text: str) -> Grant:
    """`operator@search,ranking` or `viewer`. Raises ValueError."""
    scope, mark, projects = text.partition("@")
    names = frozenset(name.strip() for name in projects.split(",")) if mark else None
    for known in PERSON_SCOPES:
        if scope.strip() == known and (names is None or all(names)):
            return Grant(scope=known, projects=names)
    raise ValueError(
        f"{text!r} is not {', '.join(PERSON_SCOPES)}, or one of them with projects, such as operator@search,ranking"
    )


def check_issuer(url: str) -> str:
    """The issuer's address. Raises ValueError where others could read or answer what is asked there."""
    if not is_protected(_parts_of(url, "oidc_issuer")):
        raise ValueError("oidc_issuer must begin with https:// (but on loopback)")
    return url


def check_root_url(url: str, name: str) -> str:
    """The address of the setting `name` without a slash at its end. Raises ValueError."""
    parts = _parts_of(url, name)
    # Pages, their files and services' paths are at fixed places below the host.
    if parts.path not in ("", "/"):
        raise ValueError(
            f"{name} has a path; it must be a host's address without a path"
        )
    return f"{parts.scheme}://{parts.netloc}"


def is_protected(parts: SplitResult) -> bool:
    """Whether no one else can read or answer what is asked at an address."""
    # Nothing leaves the machine on loopback.
    return parts.scheme == "https" or (
        parts.scheme == "http" and parts.hostname in LOOPBACK
    )


def _parts_of(url: str, name: str) -> SplitResult:
    parts = urlsplit(url)
    # A password in an address would be printed with the settings.
    is_plain = not (parts.query or parts.fragment or parts.username)
    if parts.scheme not in ("https", "http") or not parts.hostname or not is_plain:
        raise ValueError(f"{name} must be an address such as https://name.example.org")
    return parts
