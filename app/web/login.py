"""Login: log in by a token, log out. The token is asked for once; the browser keeps a session's cookie.

A token comes from the form alone, which a person fills in: whoever could log a visitor in by a link, under a token of
their own, would see all that the visitor then enters.
"""

from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from app.api.http.auth import forget_tokens
from app.api.http.guesses import address_of
from app.api.http.parts import ApiParts, Context
from app.api.http.sessions import cookie_of, log_in, log_out, require_own_page
from app.base.errors import Forbidden, Unauthorised
from app.db.base.transaction import transaction
from app.db.operations import tokens
from app.db.operations.token_secrets import PATTERN, digest
from app.web.pages import Paper

FIRST_PAGE = "/fleet"
FIRST_OF_PROJECT = "/services"
"""For tokens that are bound to projects: the fleet is not theirs."""
MAX_FORM = 4096


async def show(paper: Paper, request: Request) -> Response:
    """The form."""
    return paper.html(
        request, "login.html", next=_next(request.query_params.get("next")), problem=""
    )


async def enter(paper: Paper, request: Request) -> Response:
    """Log the holder of the token in, and on to the page that was wanted; else the form again, with the reason."""
    # Cut before it is parsed: the page is open to everybody, and a token is short.
    form = parse_qs((await request.body())[:MAX_FORM].decode("utf-8", "replace"))
    wanted = _next(form.get("next", [""])[0])
    try:
        # Otherwise another site could log a visitor in under an account of its own.
        require_own_page(request.method, request.headers.raw)
        secret = form.get("token", [""])[0].strip()
        context = await _holder(request, secret)
    except (Forbidden, Unauthorised) as error:
        return paper.html(
            request, "login.html", status=401, next=wanted, problem=str(error)
        )
    caller = context.caller
    # Only the default is changed: whoever came by a link gets the page of the link.
    if caller.projects is not None and wanted == FIRST_PAGE:
        wanted = FIRST_OF_PROJECT
    # 303, so that reloading the page does not send the form again.
    answer = RedirectResponse(wanted, status_code=303)
    secure = request.url.scheme == "https"
    await log_in(context.parts, caller, answer, secure=secure)
    await context.note_access("LoggedIn", subject=_address(request))
    return answer


async def leave(request: Request) -> Response:
    """Log out."""
    require_own_page(request.method, request.headers.raw)
    answer = RedirectResponse("/login", status_code=303)
    context: Context = request.scope["plimsoll.context"]
    await log_out(context.parts, cookie_of(request.headers.raw), answer)
    await context.note_access("LoggedOut", subject=_address(request))
    # The session may be remembered by this process for some seconds more.
    forget_tokens(request)
    return answer


async def _holder(request: Request, secret: str) -> Context:
    """What the token's holder asks. Raises Unauthorised, TooMany, or Forbidden for an agent's."""
    if not PATTERN.fullmatch(secret):
        raise Unauthorised(
            "A token reads plim_viewer_…, plim_operator_… or plim_admin_… and 43 characters more."
        )
    parts: ApiParts = request.app.state.parts
    address = address_of(request.scope)
    now = parts.clock.now()
    await parts.guesses.wait(address)
    async with transaction(parts.engine) as connection:
        # By its hash, as the API does: the secret itself is stored nowhere.
        row = await tokens.find(connection, digest(secret))
        if row is not None and row.is_valid(now):
            await tokens.note_use(connection, row, now)
    if row is None:
        await parts.guesses.note(address, digest(secret))
    if row is None or not row.is_valid(now):
        raise Unauthorised("This token is not known, was revoked, or has expired.")
    request_id = str(request.scope["plimsoll.request_id"])
    context = Context(parts=parts, caller=row, request_id=request_id)
    if not row.is_persons:
        error = Forbidden(
            "A node's token may only report. Log in with one of scope viewer, operator or admin."
        )
        await context.note_access(
            "AccessDenied", subject="operation/POST /login", reason=str(error)
        )
        raise error
    return context


def _address(request: Request) -> str:
    """From where somebody comes, as the audit names it."""
    return f"address/{address_of(request.scope)}"


def _next(wanted: str | None) -> str:
    """A page of ours; nobody is sent elsewhere by a link to the login page."""
    is_ours = (
        wanted is not None
        and wanted.startswith("/")
        # Browsers take both for the address of another host.
        and not wanted.startswith(("//", "/\\"))
    )
    return wanted if wanted and is_ours else FIRST_PAGE
