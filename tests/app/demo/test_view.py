"""The live view and the closing report: readable in 80 columns, with and without colour."""

import io
from dataclasses import replace
from decimal import Decimal

import pytest
from rich.console import Console, RenderableType

from app.db.reports.reports import ReportTable
from app.demo import report, view


def drawn(picture: RenderableType, width: int = 80) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=False).print(picture)
    return out.getvalue().splitlines()


def service_line(name: str, **values: object) -> view.ServiceLine:
    standard: dict[str, object] = {
        "arrival_rate_rps": 1234.0,
        "latency_ms": 310.0,
        "slo_ms": 1200.0,
        "percentile": 0.98,
        "attainment": 0.99871,
        "replicas": 12,
        "planned_replicas": 14,
        "sm_percent": 480.0,
    }
    return view.ServiceLine(name=name, **{**standard, **values})  # type: ignore[arg-type]


def frame(**values: object) -> view.Frame:
    standard: dict[str, object] = {
        "trace_s": 1825.0,
        "duration_s": 3000.0,
        "speed": 20.0,
        "generation": 121,
        "last_change": "resnet50: +2 on T4, -1 on V100-32GB; translation: other SM percent, batch or clock; more",
        "services": [service_line("resnet50"), service_line("translation")],
        "gpus": [
            view.GpuLine(
                name=f"v100-{index}/1",
                gpu_type="V100-32GB",
                shares=(("resnet50", 30.0), ("translation", 50.0)),
                power_w=288.0,
                power_cap_w=300.0,
            )
            for index in range(15)
        ],
        "cost_now_usd_per_hour": 12.63,
        "baseline_now_usd_per_hour": 24.48,
        "cost_usd": 11.61,
        "baseline_usd": 23.94,
    }
    return view.Frame(**{**standard, **values})  # type: ignore[arg-type]


def test_the_live_view_never_wraps_in_80_columns() -> None:
    lines = drawn(view.render(frame()))
    assert max(map(len, lines)) <= 80
    # Header, two services, a row per two GPUs, costs, last change; frames and headings: no line was broken in two.
    assert len(lines) == 1 + (2 + 1 + 2) + (2 + 8) + 1 + 1


def summary(**values: object) -> report.Summary:
    services = [
        report.DemoServiceSummary(
            name=name,
            requests=441_775,
            slo_ms=1200.0,
            percentile=0.98,
            attainment=0.9922,
            latency_ms=412.0,
            cost_usd=0.25,
            baseline_attainment=1.0,
            baseline_usd=1.25,
        )
        for name in ("resnet50", "translation")
    ]
    standard: dict[str, object] = {
        "trace_s": 3000.0,
        "duration_s": 3000.0,
        "wall_s": 150.0,
        "services": services,
        "migration_usd": 0.02,
        "baseline_migration_usd": 0.01,
        "keeps_ms": [20.0] * 98 + [90.0, 100.0],
        "looks_ms": [780.0, 800.0],
        "plans_pushed": 30,
        "first_plan_s": 6.5,
    }
    return report.Summary(**{**standard, **values})  # type: ignore[arg-type]


ANSWERS = [
    ReportTable(
        columns=("project", "usd"), rows=(("vision", Decimal("1.0")), ("(idle)", None))
    )
] * len(report.QUERIES)


@pytest.mark.parametrize(
    ("baseline_usd", "shown"),
    # 0.25 USD a service is ours.
    [(1.25, "80.0 % less"), (0.2, "25.0 % more"), (0.25, "0.0 % less"), (0.0, "–")],
)
def test_the_closing_report_says_what_is_saved_and_how_much_more_is_spent(
    baseline_usd: float, shown: str
) -> None:
    services = [replace(each, baseline_usd=baseline_usd) for each in summary().services]
    run = summary(services=services, migration_usd=0.0, baseline_migration_usd=0.0)
    lines = drawn(report.render(run, ANSWERS), width=120)
    assert sum(shown in line for line in lines if "cost   " in line) == 1


def test_the_closing_report_says_when_a_busy_machine_left_no_time_for_all_of_the_load() -> (
    None
):
    text = "\n".join(drawn(report.render(summary(trace_s=2400.0), ANSWERS), width=120))
    assert "40 minutes of load in 150 s" in text
    assert "of 50 minutes: this machine was busy" in text
    complete = "\n".join(drawn(report.render(summary(), ANSWERS), width=120))
    assert "busy" not in complete


def test_the_closing_report_says_of_each_service_whether_its_slo_was_kept() -> None:
    kept, missed = summary().services
    missed = replace(missed, attainment=0.9741)
    mixed = summary(services=[kept, missed])
    lines = drawn(report.render(mixed, ANSWERS))
    assert "kept" in next(line for line in lines if line.startswith("resnet50"))
    assert "MISSED" in next(line for line in lines if line.startswith("translation"))
    text = " ".join(" ".join(lines).split())
    assert "SLO missed: translation (97.41 % of the requests in SLO, not 98 %)" in text
    assert mixed.missed == (missed,)


def test_a_service_without_traffic_shows_no_figures() -> None:
    line = service_line("resnet50", latency_ms=None, attainment=None)
    assert (
        sum("–" in each for each in drawn(view.render(frame(services=[line], gpus=[]))))
        == 1
    )


def test_a_baseline_that_is_behind_shows_no_figures() -> None:
    unknown = frame(baseline_now_usd_per_hour=None, baseline_usd=None)
    assert any(
        "k8s_hpa – on the same load" in line for line in drawn(view.render(unknown))
    )
    assert "(k8s_hpa –)" in view.line(unknown)


def test_handovers_are_billed_for_both() -> None:
    # Two services of 0.25 and 0.3 USD each.
    services = [replace(each, baseline_usd=0.3) for each in summary().services]
    run = summary(services=services, migration_usd=0.04, baseline_migration_usd=0.075)
    lines = drawn(report.render(run, ANSWERS), width=120)
    cells = [line.split() for line in lines]
    assert ["handovers", "0.040", "0.075"] in cells
    assert ["all", "883,550", "0.540", "0.675"] in cells
    assert sum("20.0 % less" in line for line in lines if "cost   " in line) == 1
