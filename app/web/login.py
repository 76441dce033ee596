"""Login: log in by a token, log out. The token is asked for once; the browser keeps a session's cookie.

Who logs in at an identity provider comes in by `sign_on`, and out by the same way as everybody.

A token comes from the form alone, which a person fills in: one who could log in a visitor by a link, with a token of
their own, would see all that the visitor then enters.
"""

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from app.api.http.auth import Tokens, forget_tokens
from app.api.http.body import read_body
from app.api.http.guesses import address_of, named_address
from app.api.http.parts import ApiParts, Context
from app.api.http.sessions import log_in, log_out, require_own_page
from app.base.errors import Forbidden, Unauthorised
from app.db.operations.token_secrets import PATTERN
from app.db.operations.tokens import TokenRow
from app.web.pages import Paper

if TYPE_CHECKING:
    # Its libraries take half a second to import, and most control planes have no identity provider.
    from app.web.identity_provider import IdentityProvider

FIRST_PAGE = "/"
FIRST_OF_PROJECT = "/services"
"""For tokens that are bound to projects: the cluster as a whole is not theirs."""
MAX_FORM_BYTES = 4096
FORM_WITHIN_S = 5.0
MAX_PAGE = 1024


async def show(paper: Paper, request: Request) -> Response:
    """The form."""
    return paper.html(
        request,
        "login.html",
        next=next_page(request.query_params.get("next")),
        problem="",
    )


async def enter(paper: Paper, request: Request) -> Response:
    """Log the holder of the token in, and on to the page that was wanted; else the form again, with the reason."""
    wanted = FIRST_PAGE
    try:
        # Otherwise another site could log a visitor in under an account of its own. Before the body is read.
        await _require_own_page(request)
        form = await _form(request)
        wanted = next_page(form.get("next", [""])[0])
        secret = form.get("token", [""])[0].strip()
        context = await _holder(request, secret)
    except (Forbidden, Unauthorised) as error:
        return paper.html(
            request, "login.html", status=401, next=wanted, problem=str(error)
        )
    caller = context.caller
    # 303, so that reloading the page does not send the form again.
    answer = RedirectResponse(first_page(caller, wanted), status_code=303)
    secure = request.url.scheme == "https"
    # Only what is valid counts here: of unknown tokens `Guesses` keeps count.
    now_s = asyncio.get_running_loop().time()
    address = address_of(request.scope)
    wait_s = context.parts.logins.take(address, 1.0, now_s)
    await asyncio.sleep(wait_s)
    await log_in(context.parts, caller, answer, secure=secure)
    await context.note_access("LoggedIn", subject=named_address(address))
    return answer


async def leave(
    paper: Paper, provider: "IdentityProvider | None", request: Request
) -> Response:
    """Log out; a person from the identity provider is sent there to log out, too."""
    require_own_page(request.method, request.headers.raw)
    context: Context = request.scope["plimsoll.context"]
    answer = RedirectResponse("/login", status_code=303)
    await log_out(context.parts, request.scope, answer)
    subject = named_address(address_of(request.scope))
    await context.note_access("LoggedOut", subject=subject)
    # The session may be remembered by this process for some seconds more.
    forget_tokens(request)
    if provider is None or context.caller.person is None:
        return answer
    # Only now: the provider may take its time, or not answer.
    url = await provider.logout_url()
    if url is None:
        return answer
    # By a page, since the policy of our pages lets no form lead to another host, not even through a redirect.
    host = provider.terms.host
    page = paper.html(
        request,
        "onward.html",
        title="Logged out",
        text=f"You are logged out here; {host} will log you out as well.",
        links=[(f"Continue to {host}", url)],
        goes_on=True,
    )
    page.headers.append("set-cookie", answer.headers["set-cookie"])
    return page


async def _require_own_page(request: Request) -> None:
    try:
        require_own_page(request.method, request.headers.raw)
    except Forbidden:
        parts: ApiParts = request.app.state.parts
        await parts.note_denial(
            request.scope, "the login form was not submitted from this dashboard"
        )
        raise


async def _form(request: Request) -> dict[str, list[str]]:
    """What was filled in. Raises HTTPException where it is too long, or comes too slowly."""
    try:
        # The page is open to everybody, and a token is short: no one may leave much here, or stay for long.
        async with asyncio.timeout(FORM_WITHIN_S):
            body = await read_body(request, MAX_FORM_BYTES)
    except TimeoutError:
        raise HTTPException(
            HTTPStatus.REQUEST_TIMEOUT,
            f"the form did not arrive within {FORM_WITHIN_S:g} s",
            # The rest of it would be taken for the next request.
            headers={"Connection": "close"},
        ) from None
    return parse_qs(body.decode("utf-8", "replace"))


async def _holder(request: Request, secret: str) -> Context:
    """What the token's holder asks. Raises Unauthorised, TooMany, or Forbidden for an agent's."""
    parts: ApiParts = request.app.state.parts
    if not PATTERN.fullmatch(secret):
        # Without what was typed: it may be a valid token with a letter too many.
        await parts.note_denial(
            request.scope, "the login form held no well-formed token"
        )
        raise Unauthorised(
            "A token begins with plim_viewer_, plim_operator_ or plim_admin_, followed by 43 characters."
        )
    # As the API does, with its limits: the page is open to everybody.
    known: Tokens = request.scope["plimsoll.tokens"]
    row = await known.authenticate(f"Bearer {secret}", request.scope, parts)
    request_id = str(request.scope["plimsoll.request_id"])
    context = Context(parts=parts, caller=row, request_id=request_id)
    if not row.is_persons:
        error = Forbidden(
            "A node's token can only report. Log in with a token of scope viewer, operator or admin."
        )
        await context.note_access(
            "AccessDenied", subject="operation/POST /login", reason=str(error)
        )
        raise error
    return context


def first_page(caller: TokenRow, wanted: str) -> str:
    """The page that somebody sees first."""
    # Only the default is changed: a visitor who came by a link gets the page of the link.
    is_bound = caller.projects is not None and wanted == FIRST_PAGE
    return FIRST_OF_PROJECT if is_bound else wanted


def next_page(wanted: str | None) -> str:
    """A page of ours; no one is sent elsewhere by a link to the login page."""
    # Encoded first: browsers leave out tabs and line ends, and what is behind them may make another host of it.
    wanted = quote((wanted or "")[:MAX_PAGE], safe="/%?=&#:@,;+$!~*'()[]\\")
    is_ours = (
        wanted.startswith("/")
        # Browsers take both for the address of another host.
        and not wanted.startswith(("//", "/\\"))
    )
    return wanted if is_ours else FIRST_PAGE
