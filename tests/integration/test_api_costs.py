"""Costs over the API: sums, files, and who sees them, against figures that were worked out by hand."""

import asyncio
import csv
import io
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal

import pytest

from app.api.reports.export import write_csv
from app.db.reports.reports import Cell
from tests.integration.api_harness import Api, Prepared
from tests.integration.test_reports import a_busy_morning, at

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def api(no_fleet: Prepared) -> Iterator[Api]:
    """The morning of `test_reports`, seen at 12:00: bills of 2.40 USD from 10:00 and of 1.20 USD from 11:00."""
    with no_fleet.running_api() as running:
        running.on_engine(a_busy_morning)
        yield running


def test_costs_by_service_and_hour_add_up_to_the_bill(api: Api) -> None:
    found = api.get("costs?by=service&period=24h")
    assert found["step"] == "hour"
    assert {
        (each["at"][11:13], each["name"]): each["cost_usd"] for each in found["points"]
    } == {
        ("10", "(idle)"): 0.54,
        ("10", "chat"): 0.72,
        ("10", "search"): 0.84,
        ("10", "vision"): 0.30,
        # 60 % and 100 % of 0.60 each.
        ("11", "(idle)"): 0.24,
        ("11", "chat"): 0.36,
        ("11", "search"): 0.60,
    }
    assert [
        (each["name"], each["cost_usd"], each["whole_gpu_cost_usd"])
        for each in found["totals"]
    ] == [
        ("search", 1.44, 1.52),
        ("chat", 1.08, 1.68),
        ("vision", 0.30, 0.40),
        ("(idle)", 0.78, 0.0),
    ]
    assert (found["cost_usd"], found["idle_cost_usd"]) == (3.60, 0.78)


def test_without_sharing_every_service_has_whole_gpus(api: Api) -> None:
    # 10:00-10:45 three services on a GPU each: 3 × (0.60 + 0.60); then two on one each: 2 × (0.60 + 0.60).
    assert api.get("costs")["without_sharing_usd"] == 6.00
    # A day is one step.
    points = api.get("costs?by=project&period=30d")["points"]
    assert [(each["at"], each["name"], each["cost_usd"]) for each in points] == [
        ("2026-03-01T00:00:00Z", "(idle)", 0.78),
        ("2026-03-01T00:00:00Z", "default", 1.44),
        ("2026-03-01T00:00:00Z", "web", 1.38),
    ]


@pytest.mark.parametrize(
    ("query", "layers"),
    [
        ("by=project&period=7d", {"default": 1.44, "web": 1.38, "(idle)": 0.78}),
        ("by=gpu_type&period=30d", {"T4": 2.82, "(idle)": 0.78}),
        ("by=gpu_type&period=month&step=hour", {"T4": 2.82, "(idle)": 0.78}),
    ],
)
def test_layers_by_project_and_type(
    api: Api, query: str, layers: dict[str, float]
) -> None:
    found = api.get(f"costs?{query}")
    assert {each["name"]: each["cost_usd"] for each in found["totals"]} == layers
    assert found["cost_usd"] == 3.60


def test_a_token_of_a_project_sees_its_own_cost_only(api: Api) -> None:
    api.add_token("web", "viewer", projects=("web",))
    assert {each["name"] for each in api.get("costs", token="web")["totals"]} == {
        "chat",
        "vision",
    }
    assert api.get("costs?by=gpu_type", token="web")["cost_usd"] == 1.38
    # chat on a GPU of its own until 11:15 (4 × 0.60), vision until 10:45 (2 × 0.60).
    assert api.get("costs", token="web")["without_sharing_usd"] == 3.60
    rows = csv_rows(api, "cost_by_service_hour", token="web")
    assert {row["service"] for row in rows} == {"chat", "vision"}
    assert api.status("GET", "reports/bill_hour/export", token="web") == 403


def csv_rows(
    api: Api, name: str, query: str = "", token: str = "viewer"
) -> list[dict[str, str]]:
    answer = api.call("GET", f"reports/{name}/export{query}", token=token)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}.csv"'
    return list(csv.DictReader(io.StringIO(answer.text)))


def test_a_report_is_exported_to_the_last_digit_and_cut_by_time_and_project(
    api: Api,
) -> None:
    rows = csv_rows(api, "cost_by_service_hour")
    assert sum(Decimal(row["cost_usd"]) for row in rows) == Decimal("3.60")
    assert rows[0]["hour"] == "2026-03-01T10:00:00+00:00"
    cut = "?since=2026-03-01T11:00:00Z&until=2026-03-01T12:00:00Z&project=web"
    (row,) = csv_rows(api, "cost_by_project_hour", cut)
    assert (row["project"], Decimal(row["cost_usd"])) == ("web", Decimal("0.36"))


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("reports/nothing/export", 404, "no report is called"),
        ("reports/bill_hour/export?project=web", 422, "cannot be filtered by project"),
        ("reports/bill_hour/export?format=xlsx", 422, "csv"),
        ("costs?by=colour", 422, "service"),
    ],
)
def test_what_cannot_be_answered_is_said(
    api: Api, path: str, status: int, words: str
) -> None:
    answer = api.call("GET", path, token="viewer")
    assert (answer.status_code, words in answer.json()["detail"]) == (status, True)


def test_text_that_a_spreadsheet_would_calculate_is_quoted() -> None:
    async def rows() -> AsyncIterator[tuple[Cell, ...]]:
        yield ("name", "at", "flag", "list", "nothing")
        yield ("=1+1", Decimal("1E-7"), True, ["a", "b"], None)

    file = io.BytesIO()
    asyncio.run(write_csv(rows(), file))
    assert (
        file.getvalue().decode()
        == 'name,at,flag,list,nothing\n\'=1+1,0.0000001,true,"[""a"", ""b""]",\n'
    )


def test_parquet_keeps_money_exact_or_says_what_is_missing(api: Api) -> None:
    answer = api.call(
        "GET", "reports/cost_by_service_hour/export?format=parquet", token="viewer"
    )
    try:
        import pyarrow.parquet
    except ModuleNotFoundError:
        assert answer.status_code == 422
        assert "plimsoll[parquet]" in answer.json()["detail"]
        return
    table = pyarrow.parquet.read_table(io.BytesIO(answer.content))
    assert sum(table["cost_usd"].to_pylist()) == Decimal("3.60")
    assert table["hour"].to_pylist()[0] == at(10)
