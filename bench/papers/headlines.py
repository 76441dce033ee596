"""The papers' headline figures: which row of our tables answers each, and why ours differs.

`python -m bench.papers` keeps those rows (`bench.papers.kept`) in bench/papers/data/headlines.json, a quick run in
headlines_quick.json: of the first `bench.papers.page` makes docs/papers.md, to the second a test holds the quick slice.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from bench.papers.table import Row, Table

_FILE = Path(__file__).with_name("data") / "headlines.toml"


class Headline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One figure that a paper is known for."""

    system: str
    claim: str
    """In a few words, with where it is printed."""
    table: str
    """What the title of our table begins with."""
    figure: str
    """Of the row."""
    reason: str
    """Why ours differs, or what it does not show; one or two sentences."""
    policy: str
    """Whose row it is."""
    is_time: bool = False
    """Wall-clock time of this machine, which no test judges."""

    def row_in(self, tables: Iterable[Table]) -> Row | None:
        """The row that answers it; None where these tables have none."""
        return next(
            (
                row
                for table in tables
                if table.system == self.system and table.title.startswith(self.table)
                for row in table.rows
                if (row.figure, row.policy) == (self.figure, self.policy)
            ),
            None,
        )


class Headlines(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file."""

    headline: tuple[Headline, ...]


HEADLINES = msgspec.toml.decode(_FILE.read_bytes(), type=Headlines).headline
"""In the page's order."""
