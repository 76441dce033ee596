"""A package index of one wheel, a project that needs it, and its lock: installs without a network."""

import hashlib
import os
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

PROJECT = """
[project]
name = "needs-pebble"
version = "1.0"
dependencies = ["pebble-stone>=1"]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallIndex:
    """Where its parts lie."""

    project: Path
    lock: Path
    wheels: Path

    @property
    def environment(self) -> dict[str, str]:
        """The process's own, but uv knows this index alone, and keeps nothing of other tests."""
        own = {
            "UV_NO_INDEX": "1",
            "UV_FIND_LINKS": str(self.wheels),
            "UV_CACHE_DIR": str(self.wheels.parent / "cache"),
        }
        return os.environ | own

    def tamper(self) -> None:
        """The wheel is no longer the one that was locked, which uv has forgotten."""
        shutil.rmtree(self.wheels.parent / "cache", ignore_errors=True)
        with zipfile.ZipFile(next(self.wheels.iterdir()), "a") as wheel:
            wheel.writestr("pebble_stone_extra.py", "print('from somebody else')\n")


def make_small_index(folder: Path) -> SmallIndex:
    """The index, its project and the project's lock with the wheel's hash."""
    wheels = folder / "wheels"
    wheels.mkdir()
    path = wheels / "pebble_stone-1.0-py3-none-any.whl"
    info = "pebble_stone-1.0.dist-info"
    files = {
        "pebble_stone.py": "",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: pebble-stone\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
        names = "".join(f"{each},,\n" for each in [*files, f"{info}/RECORD"])
        wheel.writestr(f"{info}/RECORD", names)
    project, lock = folder / "pyproject.toml", folder / "constraints.txt"
    project.write_text(PROJECT)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    lock.write_text(f"pebble-stone==1.0 \\\n    --hash=sha256:{digest}\n")
    return SmallIndex(project=project, lock=lock, wheels=wheels)
