"""What a server or a control plane answers while it restarts or is busy; all of it passes."""

import httpx2

from tests.app.cli.fake_api import problem_document

TRANSIENTS = ("503", "429", "500", "proxy", "reset", "timeout", "refused")


def fail(what: str, request: httpx2.Request) -> httpx2.Response:
    """One such answer, or none."""
    match what:
        case "proxy":
            return httpx2.Response(502, text="<html>Bad Gateway</html>")
        case "reset":
            raise httpx2.ReadError("connection reset by peer", request=request)
        case "timeout":
            raise httpx2.ReadTimeout("timed out", request=request)
        case "refused":
            raise httpx2.ConnectError("refused", request=request)
    document = problem_document(int(what), "the database restarts")
    return httpx2.Response(int(what), json=document)
