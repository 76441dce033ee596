"""Names that are not there, and the ones that were probably meant."""

import pytest

from app.base.errors import nearest

KNOWN = ("resnet101", "resnet18-training", "resnet50", "T4", "V100-32GB")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("v100", "V100-32GB"),  # What begins so, though most of it is missing,
        ("resnet1", "resnet101"),  # the shortest of several,
        ("resnet18-train", "resnet18-training"),
        ("resmet50", "resnet50"),  # else what looks so.
        ("T44", "T4"),
        ("", None),
        ("r", None),
        ("quite different", None),
    ],
)
def test_what_begins_with_it_is_guessed_before_what_looks_like_it(
    name: str, meant: str | None
) -> None:
    assert nearest(name, KNOWN) == meant
