"""The papers' plants that ship: columns of the tables that the papers' figures were made into, as they are."""

import csv
from pathlib import Path

import pytest

from tests.shared import SHARED, needs

SHIPPED = Path(__file__).parents[3] / "bench" / "papers" / "data"
PLANTS = SHARED / "data" / "paper_plants"
OTHER_NAMES = {"mobilenet_v3": "mobilenet"}
"""What the experiments call a network of InSS' table."""


def rows_of(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


@needs("data/paper_plants")
@pytest.mark.parametrize("name", ["hetsev_tf_serving", "inss_2060", "morak_2080ti"])
def test_a_shipped_plant_is_what_was_made_of_the_papers(name: str) -> None:
    made = [
        {**row, "network": OTHER_NAMES.get(row["network"], row["network"])}
        for row in rows_of(PLANTS / f"{name}.csv")
    ]
    for row in rows_of(SHIPPED / f"{name}.csv"):
        # InSS' factors, by which its printed rows are hit, have their own test.
        facts = {key: row[key] for key in row if key != "printed_over_law"}
        assert any(facts.items() <= other.items() for other in made), row
