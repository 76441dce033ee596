"""The API alone, as uvicorn starts it: what only `plimsoll serve` used to set up."""

import os
import subprocess
import sys

FAULT = """
import structlog
from app.serve.api_process import app_from_environment

app_from_environment()
secret = "plim_" + "never-in-a-log"
try:
    raise ValueError("a fault of ours")
except ValueError as error:
    structlog.get_logger("app").error("request failed", exc_info=error)
"""


def test_a_fault_of_the_api_alone_logs_no_local_variable() -> None:
    run = subprocess.run(
        [sys.executable, "-c", FAULT],
        env={**os.environ, "PLIMSOLL_DATABASE_URL": "postgresql://localhost/none"},
        capture_output=True,
        text=True,
        check=True,
    )
    logged = run.stdout + run.stderr
    assert "a fault of ours" in logged
    assert "never-in-a-log" not in logged
