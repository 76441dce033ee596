"""Numbers of things, with the noun in singular or plural."""

from agents.base.plurals import counted


def test_counts_have_their_plural() -> None:
    assert [counted(1, "policy"), counted(2, "policy"), counted(1000, "seed")] == [
        "1 policy",
        "2 policies",
        "1,000 seeds",
    ]
    assert counted(2, "series", "series") == "2 series"
