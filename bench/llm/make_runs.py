"""The measured servers that ship with the catalogue.

python -m bench.llm.make_runs > app/catalogue/data/llm_runs.csv
"""

import csv
import sys

from bench.llm.closed_loops import load_closed_loops
from bench.measured_sets import shared_folder

COLUMNS = (
    "network",
    "gpu_type",
    "runtime",
    "precision",
    "tp",
    "clients",
    "prompt",
    "output",
    "tpot_ms",
)


def main() -> None:
    """Write the rows in the order of their source."""
    shared = shared_folder(__doc__)
    if shared is None:
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in load_closed_loops(shared / "data" / "llm_closed_loop" / "runs.csv"):
        engine = row.engine
        writer.writerow(
            (
                row.model,
                row.system,
                engine.runtime,
                engine.precision,
                engine.tp,
                row.clients,
                f"{row.isl:g}",
                f"{row.osl:g}",
                f"{row.tpot_ms:.6g}",
            )
        )


if __name__ == "__main__":
    main()
