"""Errors of the control plane's rim.

PlimsollError
├── InvalidRequest     the request is understood but cannot be done; names the field and the remedy      (422)
├── NotFound           no such object                                                                    (404)
├── Conflict           the object exists already, or changed since it was read                           (409)
├── PreconditionFailed the `If-Match` generation is not the present one                                  (412)
├── Unauthorised       no token, or none that is valid                                                   (401)
├── Forbidden          the token's scope or projects do not allow it                                     (403)
└── Unavailable        the database or another part cannot be reached; try again                        (503)

HTTP codes are given only in `app.api.http.errors`; `solvers.types.errors.InvalidInput` is answered like InvalidRequest.
"""

from collections.abc import Collection, Sequence

_MAX_NAMES = 30
"""In a message: thousands would not be read."""


class PlimsollError(Exception):
    """Base of every error that the control plane raises on purpose; its text is meant for the user."""


class InvalidRequest(PlimsollError):
    """The request is understood but cannot be done."""

    def __init__(
        self,
        detail: str,
        field: str = "",
        *,
        others: Sequence[tuple[str, str]] = (),
        may_force: bool = False,
    ) -> None:
        """`others`: further fields that are wrong, each with what is; `may_force`: it is done where one insists."""
        first = f"{field}: {detail}" if field else detail
        super().__init__(
            "; ".join([first, *(f"{name}: {wrong}" for name, wrong in others)])
        )
        self.field = field
        self.detail = detail
        self.others = tuple(others)
        self.may_force = may_force


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
    """A part that is needed cannot be reached for now."""


def nearest(name: str, known: Collection[str]) -> str | None:
    """The name that was probably meant, in whatever case: one that begins so, else one that looks so; None: no idea."""
    by_lower = {each.lower(): each for each in known}
    wanted = name.lower()
    # The beginning of a name is worth more than likeness: V100 means V100-16GB, not A100. One letter begins too many.
    longer = [each for each in by_lower if len(wanted) > 1 and each.startswith(wanted)]
    # Only a message needs it, and every command starts with this file.
    from difflib import get_close_matches

    close = sorted(longer, key=len) or get_close_matches(wanted, by_lower, n=1)
    return by_lower[close[0]] if close else None


def no_such(what: str, name: str, known: Collection[str]) -> str:
    """`no GPU type is called 'a10'; did you mean A10G? There are A10G, T4`."""
    meant = nearest(name, known)
    guess = f"did you mean {meant}? T" if meant else "t"
    names = list(known)
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    there = (
        f"here are {', '.join(names[:_MAX_NAMES])}{more}"
        if names
        else "here is none yet"
    )
    return f"no {what} is called {name!r}; {guess}{there}"
