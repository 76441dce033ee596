"""Errors of the control plane's rim.

PlimsollError
├── InvalidRequest     the request is understood but cannot be done; names the field and the remedy      (422)
├── NotFound           no such object                                                                    (404)
├── Conflict           the object exists already, or changed since it was read                           (409)
├── PreconditionFailed the `If-Match` generation is not the present one                                  (412)
├── Unauthorised       no token, or none that is valid                                                   (401)
├── Forbidden          the token's scope or projects do not allow it                                     (403)
└── Unavailable        the database or another part is away; try again                                   (503)

HTTP codes are given only in `app.api.errors`; `solvers.errors.InvalidInput` is answered like InvalidRequest.
"""

from collections.abc import Collection
from difflib import get_close_matches

_MOST_NAMES = 30
"""In a message: of thousands nobody reads all."""


class PlimsollError(Exception):
    """Base of every error that the control plane raises on purpose; its text is meant for the user."""


class InvalidRequest(PlimsollError):
    """The request is understood but cannot be done."""

    def __init__(self, detail: str, field: str = "") -> None:
        super().__init__(f"{field}: {detail}" if field else detail)
        self.field = field
        self.detail = detail


class NotFound(PlimsollError):
    """There is no such object."""


class Conflict(PlimsollError):
    """The object exists already, or changed since it was read."""


class PreconditionFailed(PlimsollError):
    """The generation that the caller saw is not the present one."""


class Unauthorised(PlimsollError):
    """The caller is not known."""


class Forbidden(PlimsollError):
    """The caller is known but may not do this."""


class Unavailable(PlimsollError):
    """A part that is needed is away for now."""


def no_such(what: str, name: str, known: Collection[str]) -> str:
    """`no GPU type is called 'a10'; did you mean A10G? There are A10G, T4`."""
    by_lower = {each.lower(): each for each in known}
    close = get_close_matches(name.lower(), by_lower, n=1)
    guess = f"did you mean {by_lower[close[0]]}? T" if close else "t"
    names = list(known)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    there = f"here are {', '.join(names[:_MOST_NAMES])}{more}" if names else "here is none yet"
    return f"no {what} is called {name!r}; {guess}{there}"
