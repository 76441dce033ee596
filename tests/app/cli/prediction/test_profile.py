"""`plimsoll profile run`: what is wrong with its words is said before anything starts, and what it asks to measure."""

from pathlib import Path

import pytest
import typer

from app.cli.prediction.profile_cells import (
    ProfileOptions,
    make_cells,
    read_numbers,
    read_splits,
)
from tests.app.runner import cli


def wanted(**changed: object) -> ProfileOptions:
    words: dict[str, object] = {
        "networks": ("a", "b"),
        "gpu_type": "T4",
        "shares": "50,100",
        "batches": "1,2",
        "clocks": "",
        "plan": None,
        "splits": "",
        "max_pairs": 60,
        "seed": 0,
    }
    return ProfileOptions(**{**words, **changed})  # type: ignore[arg-type]


def test_lists_are_read_in_order_each_number_once() -> None:
    assert read_numbers("50,10,50.0,33.3", "--shares") == (10.0, 33.3, 50.0)
    assert read_splits("25:75,50:50") == ((25.0, 75.0), (50.0, 50.0))


@pytest.mark.parametrize("words", ["", "a", "10;20", "0", "-5", "nan", "inf", "10,,20"])
def test_what_is_no_list_is_refused(words: str) -> None:
    with pytest.raises(typer.BadParameter):
        read_numbers(words, "--shares")


def test_pairs_come_on_top_and_are_drawn_where_they_are_too_many() -> None:
    alone, _ = make_cells(wanted())
    assert len(alone) == 2 * 2 * 2
    # (a, a), (a, b), (b, b) · 4 pairs of batches; of a network with itself at 50:50 two of the four are the same.
    both, notes = make_cells(wanted(splits="50:50"))
    assert (len(both) - len(alone), notes) == (3 + 4 + 3, ())
    drawn, notes = make_cells(wanted(splits="50:50", max_pairs=4))
    assert len(drawn) - len(alone) == 4
    assert notes == ("4 of 10 pairs were drawn; --max-pairs takes more",)


def test_a_plan_names_networks_neighbours_and_clocks(tmp_path: Path) -> None:
    plan = tmp_path / "points.csv"
    head = "network,gpu_type,batch,sm_percent,clock_mhz,neighbours"
    plan.write_text(
        f"{head}\na,T4,1,50,900,\na,T4,1,50,1200,\na,T4,2,25,900,b:4:75\n",
        encoding="utf-8",
    )
    cells, _ = make_cells(wanted(networks=(), plan=plan, clocks="900"))
    assert [str(cell) for cell in cells] == [
        "a batch 1 at 50 %, 900 MHz",
        "a batch 2 at 25 % next to b batch 4 at 75 %, 900 MHz",
    ]
    unlocked, notes = make_cells(wanted(networks=(), plan=plan))
    assert {cell.clock_mhz for cell in unlocked} == {None}
    assert len(unlocked) == 2
    assert notes == (
        "the plan's clocks are ignored: without --clocks no clock is locked",
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--network"),
        (("--network", "a", "--shares", "ten"), "is not a list like 10,25,50"),
        (("--network", "a", "--shares", "120"), "at most 100 %"),
        (("--network", "a", "--batches", "1.5"), "must be whole numbers"),
        (("--network", "a", "--batches", "5000"), "must be 1 to 4096"),
        (("--network", "a", "--pairs", "--pair-shares", "25"), "is not a split"),
        (("--network", "a", "--budget", "soon"), "is not a duration"),
        (("--network", "a", "-o", "-"), "a profile needs a file"),
    ],
)
def test_wrong_words_are_refused(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    place = () if "-o" in words else ("-o", tmp_path / "samples.csv")
    result = cli("profile run --gpu-type T4", *place, *words)
    assert result.code == 2, result.err
    assert said in " ".join(result.err.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []
