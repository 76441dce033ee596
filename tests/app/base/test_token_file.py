"""The file that keeps a user's token, and what is said of it."""

from pathlib import Path

import pytest

from app.base.token_file import keep_token, write_token

SECRET = "plim_admin_" + "x" * 43


def test_a_token_is_kept_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "token"
    write_token(path, SECRET)
    assert path.read_text() == f"{SECRET}\n"
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_token_is_shown_on_a_terminal_and_never_in_a_log(
    tmp_path: Path, is_seen: bool
) -> None:
    said = keep_token(tmp_path / "token", SECRET, is_seen=is_seen)
    assert str(tmp_path / "token") in said
    assert (SECRET in said) is is_seen
