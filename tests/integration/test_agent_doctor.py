"""What the node's doctor relies on: a report without content tells whether a token is taken, and changes nothing."""

import pytest

from tests.integration.api_harness import Api

pytestmark = pytest.mark.integration


def test_an_empty_report_is_refused_after_its_token_was_looked_at(api: Api) -> None:
    before = api.get("nodes")
    answers = {
        name: api.status("POST", "nodes/n1/sync", {}, token=name)
        for name in ("agent", "viewer")
    }
    answers["nobody"] = api.status("POST", "nodes/n1/sync", {}, token=None)
    assert answers == {"agent": 422, "viewer": 403, "nobody": 401}
    assert api.get("nodes") == before
