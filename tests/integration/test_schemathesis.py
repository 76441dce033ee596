"""Schemathesis over the whole API, in process: no server error, no answer that the document does not state."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from httpx2 import Response
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.stateful import run_state_machine_as_test
from schemathesis import GenerationMode, checks
from schemathesis.core.transport import Response as SchemaResponse
from schemathesis.specs.openapi import checks as openapi_checks

from app.api.application import make_api
from app.api.workloads import logs
from tests.examples import IS_THOROUGH
from tests.integration.api_harness import Api, Prepared, reading, service

pytestmark = pytest.mark.integration

EXAMPLES = 20 if IS_THOROUGH else 2
"""Per operation."""
CHAINS, STEPS = 6, 8
BASE_URL = "http://testserver"
COSTLY = {"POST /api/v1/plans/compare": 4}
"""Parts of it: each call plans once by every policy."""

CHECKED = (
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_headers_conformance,
    openapi_checks.response_schema_conformance,
)


KNOWN = {
    "name": "chat",
    "service": "chat",
    "network": "resnet50",
    "gpu_type": "T4",
    "plan_id": 1,
}
"""Values of path parameters that name something."""

NAMED = {
    "/projects/": "team-a",
    "/gpu-types/": "T4",
    "/nodes/": "n1",
    "/networks/": "resnet50",
    "/policies/": "default",
    "/reports/": "cost_by_service_hour",
}

SCHEMA = schemathesis.openapi.from_dict(make_api().openapi())
OPERATIONS = {
    operation.ok().label: operation.ok() for operation in SCHEMA.get_all_operations()
}

CASES = [
    pytest.param(
        label,
        mode,
        id=f"{mode.value} {label}",
        # Of what is wrong in a path or query there are tests of its own.
        marks=[pytest.mark.thorough]
        if mode is GenerationMode.NEGATIVE and not operation.body
        else [],
    )
    for label, operation in OPERATIONS.items()
    for mode in GenerationMode
    # What takes no input cannot get a wrong one.
    if mode is GenerationMode.POSITIVE
    or operation.body
    or any(operation.iter_parameters())
]


@pytest.fixture(scope="module")
def api(small_fleet: Prepared) -> Iterator[Api]:
    """A filled API for all operations, which change it as they like."""
    with pytest.MonkeyPatch.context() as patched, small_fleet.running_api() as running:
        # No node answers here, however long it is waited for.
        patched.setattr(logs, "ANSWER_S", 0.1)
        running.put("services/chat", service())
        assert running.sync(services=[reading()]).status_code == 200
        assert running.tick().plan_id == 1
        yield running


@pytest.mark.seeded
@pytest.mark.parametrize(("label", "mode"), CASES)
def test_every_answer_is_documented_and_none_is_a_server_error(
    api: Api, label: str, mode: GenerationMode
) -> None:
    operation = OPERATIONS[label]
    anything = operation.as_strategy(generation_mode=mode)
    something = operation.as_strategy(
        generation_mode=mode, path_parameters=_known(operation)
    )

    @settings(
        max_examples=max(1, EXAMPLES // COSTLY.get(label, 1)),
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=anything | something if operation.path_parameters else anything)
    def call(case: schemathesis.Case) -> None:
        case.validate_response(_answer(api, case), checks=list(CHECKED))

    call()


def test_workflows_over_several_operations_meet_no_server_error(api: Api) -> None:
    class Workflow(SCHEMA.as_state_machine()):  # type: ignore[misc]  # made at run time
        """Chains that schemathesis infers: what one call creates or answers, later ones read, change and delete."""

        def call(self, case: schemathesis.Case, **kwargs: Any) -> SchemaResponse:
            labels.add(case.operation.label)
            return SchemaResponse.from_any(_answer(api, case))

        def validate_response(
            self, response: SchemaResponse, case: schemathesis.Case, **kwargs: Any
        ) -> None:
            case.validate_response(response, checks=list(CHECKED))

    labels: set[str] = set()

    run_state_machine_as_test(
        Workflow,
        settings=settings(
            max_examples=CHAINS,
            stateful_step_count=STEPS,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )

    # Otherwise the document would have lost what links one operation with the next.
    assert len(labels) >= 10, labels


def _answer(api: Api, case: schemathesis.Case) -> Response:
    sent = case.as_transport_kwargs(base_url=BASE_URL)
    raw = sent.get("data")
    if "json" in sent and isinstance(sent["json"], dict):
        sent["json"] = _fitting(sent["json"], case)
    return api.client.request(
        sent["method"],
        sent["url"],
        params=sent.get("params"),
        headers={
            "If-Match": "*",
            **sent["headers"],
            "Authorization": f"Bearer {api.secrets['admin']}",
        },
        **(
            {"content": raw}
            if isinstance(raw, str | bytes)
            else {"json": sent["json"]}
            if "json" in sent
            else {}
        ),
    )


def _fitting(body: dict[str, Any], case: schemathesis.Case) -> dict[str, Any]:
    """The body with the name of the path and the default project, so that it gets past the first checks."""
    metadata = body.get("metadata")
    if not isinstance(metadata, dict) or "name" not in case.path_parameters:
        return body
    return {
        **body,
        "metadata": {
            **metadata,
            "name": case.path_parameters["name"],
            "project": "default",
        },
    }


def _known(operation: schemathesis.APIOperation) -> dict[str, object]:
    names = [parameter.name for parameter in operation.path_parameters]
    named = next(
        (value for part, value in NAMED.items() if part in operation.path),
        KNOWN["name"],
    )
    return {
        name: named if name == "name" else KNOWN.get(name, "tok-none") for name in names
    }
