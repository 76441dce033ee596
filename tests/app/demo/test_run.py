"""The demo: one at a time, and what it says of the one that runs."""

from pathlib import Path

import pytest
from rich.console import Console

from app.base.errors import PlimsollError
from app.base.settings import Settings
from app.demo.run import LOCK, DemoOptions, run_demo
from app.postgres.files import claim, try_flock


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("", "it is still starting"),
        ("look at it at http://127.0.0.1:8080/login", "127.0.0.1:8080/login"),
    ],
)
def test_a_second_demo_leaves_the_first_one_its_database_and_says_where_it_runs(
    tmp_path: Path, written: str, said: str
) -> None:
    lock = claim(tmp_path / "data").root / LOCK
    held = try_flock(lock)
    assert held is not None
    lock.write_text(written, encoding="utf-8")
    options = DemoOptions(
        settings=Settings(data_dir=tmp_path / "data"), seed=1, keep=False
    )
    with pytest.raises(PlimsollError, match=f"another .*demo.*{said}.*--data-dir"):
        run_demo(options, Console())
    assert not (tmp_path / "data" / "cluster").exists()
