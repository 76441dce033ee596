"""Counting multiprocessors through a real shared library that stands for the CUDA driver."""

import shutil
import subprocess
from pathlib import Path

import pytest

from agents.base.device import LaunchFailed
from agents.serving.engines.sm_count import driver_sm_count

SOURCE = """
int cuInit(unsigned flags) { return INIT; }
int cuDeviceGet(int *device, int ordinal) { *device = 41 + ordinal; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 16 && device == 41 ? 66 : -1;
    return ATTRIBUTE;
}
"""


def driver(folder: Path, *, init: int = 0, attribute: int = 0) -> str:
    """A library whose calls return these codes."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, library = folder / "cuda.c", folder / "libcuda.so"
    source.write_text(SOURCE)
    flags = ["-shared", "-fPIC", f"-DINIT={init}", f"-DATTRIBUTE={attribute}"]
    subprocess.run([compiler, *flags, "-o", str(library), str(source)], check=True)
    return str(library)


def test_the_first_visible_gpu_is_asked_for_its_multiprocessors(tmp_path: Path) -> None:
    assert driver_sm_count(driver(tmp_path)) == 66


def test_without_a_driver_or_a_gpu_there_is_no_number(tmp_path: Path) -> None:
    assert driver_sm_count(str(tmp_path / "absent.so")) is None
    assert driver_sm_count(driver(tmp_path, init=100)) is None


@pytest.mark.parametrize(
    ("init", "attribute", "call"), [(999, 0, "cuInit"), (0, 1, "cuDeviceGetAttribute")]
)
def test_a_driver_that_refuses_is_an_error(
    tmp_path: Path, init: int, attribute: int, call: str
) -> None:
    with pytest.raises(LaunchFailed, match=f"error {init or attribute} to {call}"):
        driver_sm_count(driver(tmp_path, init=init, attribute=attribute))
