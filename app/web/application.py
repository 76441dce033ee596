"""Puts the dashboard next to the API: pages, files, the login page, the feed, and the reference of the API."""

import asyncio
from functools import partial

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from app.api.http.auth import is_still_valid
from app.api.http.parts import Context
from app.base.errors import InvalidRequest
from app.base.sign_on import SignOnTerms
from app.web import login, new_service
from app.web.assets import Assets
from app.web.pages import PAGES, SECURITY, DashboardPage, Paper, look_of, require_person
from app.web.topics import (
    budgets,
    fleet,
    gpu,
    header,
    nodes,
    service,
    service_status,
    services,
    simulations,
)
from app.web.topics.feed import TopicFeed
from app.web.topics.topic import Look

TOPICS = {
    topic.name: topic
    for topic in (
        header.TOPIC,
        fleet.TOPIC,
        fleet.GAUGES,
        services.TOPIC,
        service_status.TOPIC,
        budgets.TOPIC,
        service.TOPIC,
        gpu.TOPIC,
        nodes.TOPIC,
        simulations.TOPIC,
    )
}
MAX_TOPICS = 8


def install(
    app: FastAPI, stopping: asyncio.Event, sign_on: SignOnTerms | None = None
) -> None:
    """Add the dashboard's routes. `stopping`: the server ends; streams end with it. `sign_on`: how people log in,
    besides with tokens."""
    # One feed for all pages: browsers that look at the same thing share one query.
    assets, feed = Assets(), TopicFeed(TOPICS, stopping)
    paper = Paper(assets, sign_on)

    async def static(request: Request) -> Response:
        return assets.answer(request, request.path_params["path"])

    async def docs(request: Request) -> Response:
        return paper.html(request, "docs.html")

    async def page(request: Request, *, page: DashboardPage) -> Response:
        context: Context = request.scope["plimsoll.context"]
        require_person(context)
        return await paper.page(page, request, context, feed)

    async def live(request: Request) -> Response:
        context: Context = request.scope["plimsoll.context"]
        require_person(context)
        looks = await feed.existing(_wanted(request, context))
        stream = feed.stream(
            looks,
            context.caller.root,
            partial(is_still_valid, request),
            context.parts.token_news,
        )
        return StreamingResponse(
            stream,
            media_type="text/event-stream",
            # nginx would else collect the stream until a buffer is full.
            headers={**SECURITY, "X-Accel-Buffering": "no"},
        )

    app.add_route(assets.prefix + "/{path:path}", static, include_in_schema=False)
    app.add_route("/docs", docs, include_in_schema=False)
    app.add_route("/live", live, include_in_schema=False)
    app.add_route(
        "/new-service/yaml",
        new_service.read_yaml,
        methods=["POST"],
        include_in_schema=False,
    )
    _add_login(app, paper, sign_on)
    for each in PAGES:
        app.add_route(each.address, partial(page, page=each), include_in_schema=False)


def _add_login(app: FastAPI, paper: Paper, sign_on: SignOnTerms | None) -> None:
    provider = None
    if sign_on is not None:
        # Only where there is a provider: the libraries behind it take half a second to import.
        from app.web.identity_provider import CALLBACK, IdentityProvider
        from app.web.sign_on import BEGIN, SignOn

        provider = IdentityProvider(sign_on)
        way = SignOn(paper, provider)
        app.add_route(BEGIN, way.begin, include_in_schema=False)
        app.add_route(CALLBACK, way.finish, include_in_schema=False)
    app.add_route("/login", partial(login.show, paper), include_in_schema=False)
    app.add_route(
        "/login", partial(login.enter, paper), methods=["POST"], include_in_schema=False
    )
    # By POST: a link or an image of another site must not end a session.
    leave = partial(login.leave, paper, provider)
    app.add_route("/logout", leave, methods=["POST"], include_in_schema=False)


def _wanted(request: Request, context: Context) -> dict[str, Look]:
    """Topics that a page asks for, as `topic=fleet` or `topic=service/chat`. Raises InvalidRequest."""
    asked = request.query_params.getlist("topic")
    if not 1 <= len(asked) <= MAX_TOPICS:
        raise InvalidRequest(
            f"ask for 1 to {MAX_TOPICS} topics of {', '.join(TOPICS)}", field="topic"
        )
    found: dict[str, Look] = {}
    for each in asked:
        name, _, argument = each.partition("/")
        if name not in TOPICS:
            raise InvalidRequest(
                f"no topic is called {name!r}; there are {', '.join(TOPICS)}",
                field="topic",
            )
        # Left out and not refused: the same page is open to tokens that are bound to projects, with less on it.
        if TOPICS[name].is_of_cluster and context.caller.projects is not None:
            continue
        found[name] = look_of(context, argument)
    return found
