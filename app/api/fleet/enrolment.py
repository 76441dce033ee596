"""Enrolment: a node's agent gets a token of its own for a join token."""

from datetime import datetime

from fastapi import Request

from app.api.http.answers import problems
from app.api.http.auth import Joiner, forget_tokens
from app.api.http.body import resource_router
from app.api.http.views import View
from app.api.operations.tokens import Hash
from app.db.operations.node_tokens import enrol
from app.manifests.parts import Name, Strict

router = resource_router("nodes", prefix="/nodes")


class EnrolRequest(Strict):
    """The secret stays on the node; its hash comes here."""

    sha256: Hash


class EnrolledView(View):
    """The token that the node has now."""

    token_id: str
    expires_at: datetime | None


@router.post(
    "/{name}/enrol",
    status_code=201,
    response_model=EnrolledView,
    responses=problems(400, 409, 413, 415),
)
async def enrol_node(
    context: Joiner, name: Name, wanted: EnrolRequest, request: Request
) -> EnrolledView:
    """Give a node's agent a token of its own. Asked again with the same hash, the answer is the same."""
    async with context.transaction() as connection:
        made = await enrol(
            connection,
            context.caller,
            name,
            sha256=bytes.fromhex(wanted.sha256),
            at=context.now(),
        )
        # Asked again, it is the same enrolment.
        if made.is_new:
            await context.audit(
                connection, "NodeEnrolled", f"node/{name}", after={"token": made.row.id}
            )
    # The node's earlier tokens may have ended.
    forget_tokens(request, lambda row: row.node == name)
    return EnrolledView(token_id=made.row.id, expires_at=made.row.expires_at)
