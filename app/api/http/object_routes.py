"""Routes of named objects: get, put and delete are alike for every kind but for who may call them and what they answer.

Each has its ETag, its preconditions and its 404 from `app.api.http.objects`.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic

from fastapi import APIRouter, Response

from app.api.http.answers import DELETE, READ, WRITE, Responses, created
from app.api.http.auth import Admin, Viewer
from app.api.http.objects import (
    Conditions,
    ObjectKind,
    Preconditions,
    Seen,
    Written,
    check_name,
    delete,
    metadata_of,
    read,
    replace,
)
from app.api.http.parts import Context

Endpoint = Callable[..., Coroutine[Any, Any, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRoutes(Generic[Seen, Written]):
    """Adds the routes at `/{name}` of one kind to its router; `doc` is what the OpenAPI document says of each."""

    router: APIRouter
    kind: ObjectKind[Seen, Written]
    noun: str
    """As in the routes' names, e.g. `gpu_type` of `get_gpu_type`."""
    name: object
    """The annotation of the name in the path."""
    view: type[Seen]

    def get(self, doc: str, by: object = Viewer) -> None:
        """Anybody with a viewer's token reads one object, or whoever `by` allows."""

        async def endpoint(context: Context, name: str, response: Response) -> Seen:
            return await read(context, self.kind, name, response)

        self._add("GET", endpoint, doc, READ, context=by, returns=self.view)

    def put(self, doc: str, manifest: type[Written]) -> None:
        """An admin creates or replaces one object."""

        async def endpoint(
            context: Context,
            name: str,
            manifest: Written,
            *,
            conditions: Preconditions,
            response: Response,
        ) -> Seen:
            # The path names the object; a body that names another one is a mistake, and is refused.
            check_name(name, metadata_of(manifest))
            return await replace(
                context,
                self.kind,
                name,
                manifest,
                conditions=conditions,
                response=response,
            )

        endpoint.__annotations__ |= {"manifest": manifest, "conditions": Conditions}
        answers = WRITE | created(self.view)
        self._add("PUT", endpoint, doc, answers, context=Admin, returns=self.view)

    def delete(self, doc: str, by: object = Admin) -> None:
        """An admin deletes one object, or whoever `by` allows."""

        async def endpoint(
            context: Context, name: str, conditions: Preconditions
        ) -> None:
            await delete(context, self.kind, name, conditions)

        endpoint.__annotations__ |= {"conditions": Conditions}
        self._add("DELETE", endpoint, doc, DELETE, context=by, returns=None)

    def _add(
        self,
        method: str,
        endpoint: Endpoint,
        doc: str,
        responses: Responses,
        *,
        context: object,
        returns: object,
    ) -> None:
        # FastAPI reads who may call, the name's pattern and the answer from the annotations, which differ by kind.
        endpoint.__annotations__ |= {
            "context": context,
            "name": self.name,
            "return": returns,
        }
        self.router.add_api_route(
            "/{name}",
            endpoint,
            methods=[method],
            name=f"{method.lower()}_{self.noun}",
            description=doc,
            responses=responses,
            status_code=None if returns is not None else 204,
        )
