"""The decorator of these kernels."""

from pathlib import Path

from solvers.compiled import compiler

SOURCES = tuple(Path(__file__).parent.glob("*.py"))
"""The kernels and the tuples that they take apart."""
compiled = compiler(SOURCES)
