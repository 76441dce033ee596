"""What the API's process loads before it answers: nothing that only a plan, a fit or an upgrade needs."""

import subprocess
import sys


def test_the_api_loads_no_optimiser_and_no_migrations() -> None:
    script = (
        "import sys\n"
        "import app.cli.start.control_plane\n"
        "import app.serve.api_process\n"
        "parts = ('scipy.special', 'scipy.optimize', 'alembic', 'numba', 'ortools')\n"
        "print(*[name for name in parts if name in sys.modules], len(sys.modules))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    *heavy, modules = ended.stdout.split()
    assert heavy == []
    # 1,614: SciPy's optimisers are another 400 and 45 MiB.
    assert int(modules) < 1750
