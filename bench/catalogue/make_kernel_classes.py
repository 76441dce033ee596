"""Make `app/catalogue/data/kernel_classes.csv` (compute- and memory-bound kernels) from Orion's profiles.

    python -m bench.catalogue.make_kernel_classes [--shared ../shared/data]

Inference only, under the catalogue's names. A re-run gives the same bytes. Source: eth-easl/orion (MIT), V100.
"""

import argparse
from pathlib import Path

from bench.catalogue.measured import ROOT, rows, write_rows

OUT = ROOT / "app" / "catalogue" / "data" / "kernel_classes.csv"
NAMES = {"mobilenetv2": "mobilenet_v2", "efficientnet": "efficientnet_b0"}
COLUMNS = (
    "compute_bound_kernels",
    "memory_bound_kernels",
    "compute_bound_ms",
    "memory_bound_ms",
)


def make(shared: Path, out: Path) -> None:
    """One line per network: the smallest batch that was profiled."""
    profiled = [
        row
        for row in rows(shared / "orion_kernels" / "kernel_classes.csv")
        if row["mode"] == "inference"
    ]
    lines = {
        NAMES.get(row["model"], row["model"]): (
            row["batch"],
            *(row[column] for column in COLUMNS),
        )
        for row in sorted(profiled, key=lambda row: -int(row["batch"]))
    }
    write_rows(
        out,
        ("network", "batch", *COLUMNS),
        [(name, *line) for name, line in sorted(lines.items())],
    )


def main() -> None:
    """Read the folder from the command line and make the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared" / "data")
    make(parser.parse_args().shared, OUT)


if __name__ == "__main__":
    main()
