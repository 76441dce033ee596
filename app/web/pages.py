"""Pages: which there are, and the HTML around each; what it shows is drawn by its script."""

import gzip
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import Response

from app.api.http.body import accepts_gzip
from app.api.http.parts import Context
from app.base.errors import Forbidden
from app.base.sign_on import SignOnTerms
from app.web.assets import Assets
from app.web.topics.feed import TopicFeed
from app.web.topics.topic import Look

# Scripts and styles only from our own files; charts set styles by script, which this allows.
SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
COMPRESSION_LEVEL = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardPage:
    """One kind of page."""

    name: str
    """Its script is called so, and its address where `path` does not say otherwise."""
    title: str
    path: str = ""
    """With the part in braces that `argument` is taken from, e.g. `/services/{argument}`."""
    topics: tuple[str, ...] = ()
    """What its script draws, besides `header`."""
    under: str = ""
    """The page that the navigation shows as the present one; empty: itself."""
    is_in_navigation: bool = True
    is_of_cluster: bool = False
    """Shows nothing to a token that is bound to projects, but why."""

    @property
    def address(self) -> str:
        """Its path."""
        return self.path or f"/{self.name}"


PAGES = (
    DashboardPage(
        name="overview",
        title="Overview",
        path="/",
        # Conditions come by the stream: of 200 services they take longer than a page may take to be drawn.
        topics=("fleet", "gauges", "services"),
        is_of_cluster=True,
    ),
    DashboardPage(
        name="fleet",
        title="Fleet",
        topics=("fleet", "gauges", "services"),
        is_of_cluster=True,
    ),
    DashboardPage(
        name="services",
        title="Services",
        # Without conditions, as the overview.
        topics=("services", "budgets"),
    ),
    DashboardPage(
        name="service",
        title="Service",
        path="/services/{argument}",
        topics=("service",),
        under="services",
        is_in_navigation=False,
    ),
    DashboardPage(
        name="new_service",
        title="New service",
        path="/new-service",
        under="services",
        is_in_navigation=False,
    ),
    DashboardPage(name="tasks", title="Tasks"),
    DashboardPage(name="plans", title="Plans", is_of_cluster=True),
    DashboardPage(name="policy", title="Policy", is_of_cluster=True),
    DashboardPage(
        name="plan",
        title="Plan",
        path="/plans/{argument}",
        under="plans",
        is_in_navigation=False,
        is_of_cluster=True,
    ),
    DashboardPage(
        name="why",
        title="Why plan",
        path="/why/{argument}",
        under="plans",
        is_in_navigation=False,
    ),
    DashboardPage(
        name="what_if",
        title="What-if",
        path="/what-if",
        topics=("services", "fleet"),
        is_of_cluster=True,
    ),
    DashboardPage(name="simulate", title="Simulate", topics=("simulations",)),
    DashboardPage(name="cost", title="Cost"),
    DashboardPage(name="predictors", title="Predictors", is_of_cluster=True),
    DashboardPage(name="nodes", title="Nodes", topics=("nodes",), is_of_cluster=True),
    DashboardPage(
        name="gpu",
        title="GPU",
        path="/gpus/{argument:path}",
        topics=("gpu",),
        under="nodes",
        is_in_navigation=False,
        is_of_cluster=True,
    ),
    DashboardPage(name="events", title="Events", is_of_cluster=True),
)
"""In the order of the navigation."""


class Paper:
    """Makes pages."""

    def __init__(self, assets: Assets, sign_on: SignOnTerms | None = None) -> None:
        """`sign_on`: the identity provider that the login page offers."""
        self._assets = assets
        self._sign_on = sign_on
        self._templates = Environment(
            loader=PackageLoader("app.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
        )

    async def page(
        self, page: DashboardPage, request: Request, context: Context, feed: TopicFeed
    ) -> Response:
        """One page with the first data of its topics."""
        argument = str(request.path_params.get("argument", ""))
        first: dict[str, Mapping[str, object]] = {}
        # The first data comes with the page, so that it shows something before its stream is open.
        for name in ("header", *page.topics):
            topic = feed.topics[name]
            if topic.is_of_cluster and context.caller.projects is not None:
                continue
            first[name] = await feed.load(look_of(context, argument), name)
        return self.html(
            request,
            "page.html",
            page=page,
            pages=[
                each
                for each in PAGES
                if each.is_in_navigation and _reaches(context, each)
            ],
            # A caller that may not see the page is told where to look instead, by a page with the same frame.
            script=page.name if _reaches(context, page) else "elsewhere",
            argument=argument,
            caller=context.caller,
            state=_data_block(
                {
                    "page": page.name,
                    "argument": argument,
                    "scope": context.caller.scope,
                    "first": first,
                }
            ),
        )

    def html(
        self, request: Request, template: str, *, status: int = 200, **values: object
    ) -> Response:
        """One template, filled in."""
        text = self._templates.get_template(template).render(
            assets=self._assets.prefix, sign_on=self._sign_on, **values
        )
        headers = {**SECURITY, "Vary": "Accept-Encoding"}
        body = text.encode()
        if accepts_gzip(request):
            headers["Content-Encoding"] = "gzip"
            # A low level: pages are made for each request, other than files.
            body = gzip.compress(body, COMPRESSION_LEVEL)
        return Response(
            body,
            status_code=status,
            media_type="text/html; charset=utf-8",
            headers=headers,
        )


def _reaches(context: Context, page: DashboardPage) -> bool:
    return context.caller.projects is None or not page.is_of_cluster


def look_of(context: Context, argument: str) -> Look:
    """Who looks at what."""
    return Look(
        parts=context.parts,
        argument=argument,
        projects=context.caller.projects,
        token=context.caller.root,
    )


def require_person(context: Context) -> None:
    """Raise Forbidden for a node's token."""
    if not context.caller.is_persons:
        raise Forbidden(
            "a node's token can only report; log in with a token of scope viewer, operator or admin"
        )


def _data_block(value: object) -> str:
    """JSON that may stand in a script element: `<` cannot end it there."""
    return msgspec.json.encode(value).decode().replace("<", "\\u003c")
