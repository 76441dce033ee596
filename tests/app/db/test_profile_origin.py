"""Where profiles come from, by the source that the database keeps."""

import pytest

from app.catalogue.install import SOURCE
from app.db.predictions.profiles import ProfileOrigin, origin_of


@pytest.mark.parametrize(
    ("source", "origin"),
    [
        ("fitted by linear_fractional to 120 samples", ProfileOrigin.FITTED),
        ("estimated by scaled_roofline", ProfileOrigin.ESTIMATED),
        (SOURCE, ProfileOrigin.SHIPPED),
        ("token/team-a", ProfileOrigin.SENT),
        ("", ProfileOrigin.SENT),
    ],
)
def test_a_source_tells_its_origin(source: str, origin: ProfileOrigin) -> None:
    assert origin_of(source) is origin


def test_the_catalogues_source_is_what_databases_have() -> None:
    assert SOURCE == "shipped catalogue, see app/catalogue/SOURCES.md"
