"""Tables of the benches."""

import pytest

from bench.report import Figures, print_table

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize(
    ("room", "columns"), [(None, 3), (19, 3), (18, 2), (13, 2), (12, 1)]
)
def test_last_columns_without_room_are_left_out(
    room: int | None, columns: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[Figures] = [
        {"first": "12345", "second": 1.5, "c": None},
        {"first": "x", "second": 2345.6, "c": True},
    ]
    print_table(rows, room=room)
    lines = capsys.readouterr().out.splitlines()
    assert [len(line.split()) for line in lines] == [columns] * 3
    assert len({len(line) for line in lines}) == 1
    assert room is None or len(lines[0]) <= room
