"""Machine code on disk: used again while no kernel's source changes, never after."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from solvers.compiled import KernelCache, digest
from solvers.joint.kernels import compiled
from solvers.joint.kernels.compiled import SOURCES
from solvers.joint.kernels.laws import capacity_rps


def run(directory: Path, stamp: str, *, added: int) -> list[int]:
    """(result, cache hits) of a kernel whose callee adds so much; the file that holds the kernel stays as it is."""
    (directory / "callee.py").write_text(
        f"import numba\n\n@numba.njit\ndef inner(x):\n    return x + {added}\n"
    )
    (directory / "caller.py").write_text(
        "import sys\n\nimport numba\n\nfrom callee import inner\n"
        "from solvers.compiled import KernelCache\n\n"
        "def outer(x):\n    return inner(x)\n\n"
        "kernel = numba.njit(outer)\nkernel._cache = KernelCache(outer, sys.argv[1])\n"
        "print(kernel(1), sum(kernel.stats.cache_hits.values()))\n"
    )
    root = Path(compiled.__file__).parents[4]
    environment = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(directory / "cache"),
        "PYTHONPATH": str(root),
    }
    done = subprocess.run(
        [sys.executable, "caller.py", stamp],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(word) for word in done.stdout.split()]


def test_code_is_kept_while_the_stamp_is_the_same_and_made_anew_when_it_changes(
    tmp_path: Path,
) -> None:
    assert run(tmp_path, "one", added=1) == [2, 0]
    # Without a new stamp numba runs the old callee: what this test is about.
    assert run(tmp_path, "one", added=5) == [2, 1]
    assert run(tmp_path, "two", added=5) == [6, 0]


def test_the_stamp_follows_every_source_of_the_kernels(tmp_path: Path) -> None:
    copies = [Path(shutil.copy(source, tmp_path)) for source in SOURCES]
    before = digest(copies)
    assert before == digest(reversed(copies)) == digest(SOURCES)
    for copy in copies:
        text = copy.read_text()
        copy.write_text(text + "\n")
        assert digest(copies) != before, copy.name
        copy.write_text(text)
    assert {source.name for source in SOURCES} >= {
        "search.py",
        "laws.py",
        "types.py",
        "compiled.py",
    }


def test_every_kernel_carries_the_stamp() -> None:
    assert isinstance(capacity_rps._cache, KernelCache)  # type: ignore[attr-defined]
    kernels = Path(compiled.__file__).parent
    assert not [
        path.name
        for path in kernels.glob("*.py")
        if "njit" in path.read_text() and path.name != "compiled.py"
    ]


def test_where_no_cache_can_be_written_a_kernel_still_works() -> None:
    """Code that came from no file has no place for numba's cache either."""
    made: dict[str, Callable[[int], int]] = {}
    exec("def double(x):\n    return 2 * x\n", made)
    assert compiled.compiled(made["double"])(3) == 6
