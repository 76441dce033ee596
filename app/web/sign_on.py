"""Login at an identity provider: the way there and back. Who comes back gets a session, as by a token."""

import json
from dataclasses import replace
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from app.api.http.errors import status_of
from app.api.http.guesses import address_of, named_address
from app.api.http.parts import ApiParts, Context
from app.api.http.sessions import LASTS, log_in
from app.base.errors import Forbidden, PlimsollError, Unauthorised
from app.base.scopes import PERSON_SCOPES
from app.base.sign_on import Grant, grants_of
from app.db.base.transaction import transaction
from app.db.operations import sessions
from app.db.operations.token_secrets import TokenOrder
from app.web.identity_provider import IdentityProvider, LoginAttempt, Person
from app.web.login import FIRST_PAGE, first_page, next_page
from app.web.pages import Paper

BEGIN = "/login/oidc"
ATTEMPT_LASTS_S = 600
"""Time to type a password and a second factor."""
TOKEN_NAME = "oidc"
"""The name of all tokens behind such sessions; `TokenRow.person` says who it is."""
MAX_GROUPS_SHOWN = 30


class SignOn:
    """The two addresses of a login at the provider."""

    def __init__(self, paper: Paper, provider: IdentityProvider) -> None:
        self._paper = paper
        self._provider = provider
        self._terms = provider.terms
        self._is_secure = self._terms.public_url.startswith("https:")
        # The prefix keeps hosts besides ours from setting it, and so from logging a visitor in as somebody else.
        self._cookie = f"{'__Host-' if self._is_secure else ''}plimsoll_login"

    async def begin(self, request: Request) -> Response:
        """Send the browser to the provider, with a cookie by which it is known again."""
        asked = request.query_params
        scope = asked.get("as", "")
        attempt = LoginAttempt.begin(
            next_page(asked.get("next")), scope if scope in PERSON_SCOPES else ""
        )
        try:
            async with self._provider.seats.taken(address_of(request.scope)):
                url = await self._provider.login_url(attempt)
        except PlimsollError as error:
            return self._refusal(request, error, attempt.wanted)
        answer = RedirectResponse(url, status_code=303)
        answer.set_cookie(
            self._cookie,
            attempt.cookie,
            max_age=ATTEMPT_LASTS_S,
            httponly=True,
            # Not "strict": it has to come back with the provider's redirect.
            samesite="lax",
            secure=self._is_secure,
        )
        return answer

    async def finish(self, request: Request) -> Response:
        """Log in the person who comes back from the provider; else the login page, with the reason."""
        attempt = self._answered(request)
        # Before anything else is looked at: another site can lead a browser here with a code or a text of its own. It
        # must not end a login that goes on in another tab either.
        if attempt is None:
            minutes = ATTEMPT_LASTS_S // 60
            error = Unauthorised(
                f"This login was not started in this browser, or more than {minutes} minutes ago: log in again."
            )
            await _note_denial(request, "the login was not started in this browser")
            return self._refusal(request, error, FIRST_PAGE)
        try:
            answer = await self._enter(request, attempt)
        except PlimsollError as error:
            # Who is forbidden was noted by name; a provider that is not there refuses no one.
            if isinstance(error, Unauthorised):
                # Without its words: a visitor who comes back can make up what the provider is said to have said.
                await _note_denial(request, "the provider's answer was not accepted")
            answer = self._refusal(request, error, attempt.wanted)
        # Gone whatever came of it: an attempt is answered once.
        answer.delete_cookie(
            self._cookie, httponly=True, samesite="lax", secure=self._is_secure
        )
        return answer

    def _answered(self, request: Request) -> LoginAttempt | None:
        """The login of this browser that the request is the answer to; None: there is none."""
        attempt = LoginAttempt.parse(request.cookies.get(self._cookie, ""))
        state = request.query_params.get("state", "")
        if attempt is None or not attempt.has_state(state):
            return None
        # Over plain HTTP a host besides ours can set the cookie.
        return replace(attempt, wanted=next_page(attempt.wanted))

    async def _enter(self, request: Request, attempt: LoginAttempt) -> Response:
        """Log the person in. Raises PlimsollError, with what they or the operator can do."""
        asked = request.query_params
        if "code" not in asked:
            raise Unauthorised(self._refused_there(request))
        async with self._provider.seats.taken(address_of(request.scope)):
            await self._provider.check_issuer(asked.get("iss"))
            person = await self._provider.person(asked["code"], attempt)
        choices = grants_of(person.groups, self._terms.grants)
        if not choices:
            reason = "none of their groups at the identity provider has access"
            await _note_denial(request, reason, person=person.name)
            raise Forbidden(self._no_group(person))
        preferred = [each for each in choices if each.scope == attempt.scope]
        chosen = (preferred or choices)[0]
        context = await _context(request, person, chosen)
        # A page, not a redirect: a redirect would count as the provider's, and the browser would withhold the
        # SameSite=Strict cookie.
        answer = self._paper.html(
            request,
            "onward.html",
            title="Logged in",
            text=f"You are logged in as {person.name}.",
            links=[
                (f"Continue as {chosen}", first_page(context.caller, attempt.wanted)),
                *_other_choices(choices, chosen, attempt.wanted),
            ],
            # A person who has a choice is not hurried past it.
            goes_on=bool(preferred) or len(choices) == 1,
        )
        await log_in(context.parts, context.caller, answer, secure=self._is_secure)
        return answer

    def _refusal(self, request: Request, error: PlimsollError, wanted: str) -> Response:
        """The login page with the reason, so that a token is at hand while the provider is not."""
        status, headers = status_of(error)
        answer = self._paper.html(
            request, "login.html", status=status, next=wanted, problem=str(error)
        )
        answer.headers.update(headers)
        return answer

    def _refused_there(self, request: Request) -> str:
        """What the provider said in place of a code."""
        asked = request.query_params
        error, detail = asked.get("error", "no code"), asked.get("error_description")
        said = f"{error}: {detail}" if detail else error
        return f"{self._terms.host} did not log you in ({said[:300]}). Log in again, or ask its operator."

    def _no_group(self, person: Person) -> str:
        """What the person, and who runs the control plane, need to know."""
        terms = self._terms
        if not person.groups:
            return (
                f"{terms.host} sends no groups for {person.name}; configure it to send the claim "
                f"{terms.groups_claim!r} to the client {terms.client_id!r}, or name another one in "
                "PLIMSOLL_OIDC_GROUPS_CLAIM."
            )
        shown = ", ".join(person.groups[:MAX_GROUPS_SHOWN])
        example = json.dumps({person.groups[0]: "viewer"}, ensure_ascii=False)
        hidden = len(person.groups) - MAX_GROUPS_SHOWN
        more = f" and {hidden} more" if hidden > 0 else ""
        return (
            f"None of the groups of {person.name} has access: {shown}{more}. "
            f"Ask the operator to add one of them, such as PLIMSOLL_OIDC_GROUPS='{example}'."
        )


async def _note_denial(
    request: Request, reason: str, *, person: str | None = None
) -> None:
    parts: ApiParts = request.app.state.parts
    await parts.note_denial(request.scope, reason, person=person)


def _other_choices(
    choices: tuple[Grant, ...], chosen: Grant, wanted: str
) -> list[tuple[str, str]]:
    """Labels and addresses, which lead to the provider once more: it knows the person by now, and asks nothing."""
    others = [each for each in choices if each.scope != chosen.scope]
    return [
        (
            f"Log in as {each} instead",
            f"{BEGIN}?{urlencode({'as': each.scope, 'next': wanted})}",
        )
        for each in others
    ]


async def _context(request: Request, person: Person, chosen: Grant) -> Context:
    """What the person asks from now on, with a token that ends as a session does."""
    parts: ApiParts = request.app.state.parts
    now = parts.clock.now()
    order = TokenOrder(
        name=TOKEN_NAME,
        scope=chosen.scope,
        projects=None if chosen.projects is None else tuple(sorted(chosen.projects)),
        person=person.name,
        expires_at=now + LASTS,
    )
    async with transaction(parts.engine) as connection:
        caller = await sessions.token_of_person(connection, order, at=now)
    request_id = str(request.scope["plimsoll.request_id"])
    context = Context(parts=parts, caller=caller, request_id=request_id)
    await context.note_access(
        "LoggedIn",
        subject=named_address(address_of(request.scope)),
        reason=f"as {chosen}, through the identity provider",
    )
    return context
