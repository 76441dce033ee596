"""Names that are not there, and the ones that were probably meant."""

import pytest

from app.base.errors import nearest, no_such

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


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (("T4", "V100-32GB"), "did you mean V100-32GB? There are T4, V100-32GB"),
        (("T4",), "there are T4"),
        ((), "there is none yet"),
    ],
)
def test_the_guess_is_in_the_message(known: tuple[str, ...], words: str) -> None:
    assert no_such("GPU type", "v100", known) == (
        f"no GPU type is called 'v100'; {words}"
    )
