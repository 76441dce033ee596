"""How compute-bound networks are, by the time in their kernels; of the few that were profiled kernel by kernel."""

import csv
from collections.abc import Mapping
from importlib import resources


def load_kernel_ratios() -> Mapping[str, float]:
    """Time in compute-bound over time in memory-bound kernels, by network (OLTunes, equation 1, weighted by time)."""
    text = (
        resources.files("app.catalogue") / "data" / "kernel_classes.csv"
    ).read_text()
    return {
        row["network"]: kernel_ratio(
            float(row["compute_bound_ms"]), float(row["memory_bound_ms"])
        )
        for row in csv.DictReader(text.splitlines())
    }


def load_count_ratios() -> Mapping[str, float]:
    """The same by the number of kernels, as equation 1 is printed; by it no network is compute-intensive."""
    text = (
        resources.files("app.catalogue") / "data" / "kernel_classes.csv"
    ).read_text()
    return {
        row["network"]: kernel_ratio(
            float(row["compute_bound_kernels"]), float(row["memory_bound_kernels"])
        )
        for row in csv.DictReader(text.splitlines())
    }


def kernel_ratio(compute: float, memory: float) -> float:
    """How compute-bound a network is, by times or counts of kernels; where one is 0 the other alone counts."""
    return compute / memory if compute > 0.0 and memory > 0.0 else max(compute, memory)
