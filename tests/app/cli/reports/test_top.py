"""`plimsoll top`: the feed's events become a picture that fits the screen."""

import io
from typing import Any

from rich.console import Console

from app.cli.reports.top import TopicTables, frame


def a_service(**fields: object) -> dict[str, Any]:
    base = {
        "slo_ms": 100.0,
        "percentile": 0.98,
        "replicas": {"T4": 1},
        "planned_rate_rps": 40.0,
        "attainment": 0.99,
    }
    return {
        **base,
        "cost_usd_per_hour": 0.35,
        "rate_rps": 38.0,
        "latency_ms": 50.0,
        **fields,
    }


def a_gpu(*parts: tuple[str, float], **fields: object) -> dict[str, Any]:
    made = [
        {"owner": owner, "sm_percent": sm, "state": "ready", "kind": "replica"}
        for owner, sm in parts
    ]
    base = {
        "gpu_type": "T4",
        "healthy": True,
        "is_heard": True,
        "memory_mib": 16384.0,
        "power_cap_w": 70.0,
    }
    return {**base, "parts": made, **fields}


def a_board(
    services: dict[str, Any], gpus: dict[str, Any] | None = None
) -> TopicTables:
    board = TopicTables()
    board.take("services", {"all": True, "set": services})
    if gpus is not None:
        board.take("fleet", {"all": True, "set": gpus})
        board.take(
            "gauges",
            {"all": True, "set": {name: [8192, 45, 1590, 60] for name in gpus}},
        )
    return board


def drawn(
    board: TopicTables, *, height: int = 40, is_entire: bool = False
) -> list[str]:
    screen = Console(file=io.StringIO(), width=110, height=height, no_color=True)
    screen.print(frame(board, screen, is_entire=is_entire))
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue().splitlines()


def test_events_set_change_and_remove_items() -> None:
    board = TopicTables()
    board.take("services", {"all": True, "set": {"a": 1, "b": 2}})
    board.take("services", {"set": {"b": 3, "c": 4}, "gone": ["a"]})
    assert board.tables["services"] == {"b": 3, "c": 4}
    board.take("services", {"all": True, "set": {"d": 5}})
    assert board.tables["services"] == {"d": 5}


def test_who_misses_its_slo_comes_first() -> None:
    lines = drawn(
        a_board(
            {
                "a": a_service(),
                "z": a_service(attainment=0.9),
                "q": a_service(attainment=None),
            }
        )
    )
    assert [line.split()[0] for line in lines[2:5]] == ["z", "a", "q"]
    assert "90.00 %" in lines[2]
    assert "–" in lines[4]


def test_a_gpu_is_a_bar_filled_up_to_the_line() -> None:
    # 50 and 20 of 100 percent of 30 columns: 15 and 6, which leaves 9.
    line = drawn(
        a_board({"a": a_service()}, {"n1/gpu-0": a_gpu(("a", 50.0), ("b", 20.0))})
    )[-1]
    assert "█" * 21 + "·" * 9 + "|" in line
    assert "45/70" in line
    assert "8/16" in line
    assert "a 50 %, b 20 %" in line


def test_a_large_fleet_is_cut_to_the_screen_and_whole_where_that_is_asked_for() -> None:
    gpus = {f"n{at:03}/gpu-0": a_gpu(("a", 50.0)) for at in range(500)}
    services = {f"s{at:03}": a_service() for at in range(200)}
    board = a_board(services, gpus)
    cut = drawn(board, height=30)
    assert len(cut) <= 30
    assert sum("more" in line for line in cut) == 2
    assert len(drawn(board, is_entire=True)) >= 700
