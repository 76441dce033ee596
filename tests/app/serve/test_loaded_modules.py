"""The API alone, as uvicorn starts it: what it loads before it answers, and that its logs hold no secret."""

import os
import subprocess
import sys

PROGRAM = """
import sys
import structlog
import app.cli.start.control_plane
from app.serve.api_process import app_from_environment

parts = ("scipy.special", "scipy.optimize", "alembic", "numba", "ortools")
print(*[name for name in parts if name in sys.modules], len(sys.modules))
app_from_environment()
secret = "plim_" + "never-in-a-log"
try:
    raise ValueError("a fault of ours")
except ValueError as error:
    structlog.get_logger("app").error("request failed", exc_info=error)
"""


def test_the_api_loads_no_optimiser_and_no_migrations_and_logs_no_local_variable() -> (
    None
):
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PLIMSOLL_DATABASE_URL": "postgresql://localhost/none"},
        capture_output=True,
        text=True,
        check=True,
    )
    *heavy, modules = ended.stdout.splitlines()[0].split()
    assert heavy == []
    # 1,614: SciPy's optimisers are another 400 and 45 MiB.
    assert int(modules) < 1750
    logged = ended.stdout + ended.stderr
    assert "a fault of ours" in logged
    assert "never-in-a-log" not in logged
