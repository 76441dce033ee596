"""Names in a request that must exist: what does not is refused with a list of what does."""

from collections.abc import Mapping, Sequence

from app.api.http.parts import Context
from app.base.errors import InvalidRequest, no_such
from app.db.base.transaction import Connection
from app.db.fleet import gpu_types
from app.db.workloads import projects
from solvers.policies.governor_parameters import GOVERNOR_PARAMETERS
from solvers.policies.registry import parameters_of
from solvers.policies.registry import policies as known_policies
from solvers.types.errors import InvalidInput
from solvers.types.parameters import Setting


def check_known(
    names: Sequence[str], known: Sequence[str], *, what: str, field: str
) -> None:
    """Raise InvalidRequest, which lists what exists, for the first name that does not."""
    for name in names:
        # The first one only: names are often wrong together, and one list of what exists says enough.
        if name not in known:
            raise InvalidRequest(no_such(what, name, known), field=field)


def check_policy(policy: str, *, field: str) -> None:
    """Raise InvalidRequest where no policy is called so."""
    check_known([policy], known_policies(), what="policy", field=field)


def check_parameters(
    stated: Mapping[str, Mapping[str, Setting]], *, field: str
) -> None:
    """Raise InvalidRequest where a policy or governor has no such parameter, or does not allow its value."""
    for policy, parameters in stated.items():
        if policy not in GOVERNOR_PARAMETERS:
            check_policy(policy, field=field)
        try:
            parameters_of(policy, parameters)
        except InvalidInput as error:
            raise InvalidRequest(
                error.problem, field=f"{field}.{policy}.{error.field}"
            ) from error


async def check_gpu_types(
    context: Context, connection: Connection, names: Sequence[str], *, field: str
) -> None:
    """Raise InvalidRequest for the first GPU type that does not exist."""
    # Most services name none, and are written without the query.
    if not names:
        return
    rows = await gpu_types.list_rows(connection, context.now())
    known = [row.gpu_type.name for row in rows]
    check_known(names, known, what="GPU type", field=field)


async def check_visible_project(
    context: Context, connection: Connection, project: str
) -> None:
    """Raise InvalidRequest where no project that the caller's token reaches is called so."""
    rows = await projects.list_rows(connection)
    # The list in the message must not name projects that the caller may not see.
    visible = [row.name for row in rows if context.sees(row.name)]
    check_known([project], visible, what="project", field="metadata.project")
