"""Dashboards and rules ask for metrics and labels that are there, in PromQL that can be read."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.waiting import PATIENCE_S
from tools.documents import metrics as metrics_document

ROOT = Path(__file__).parents[2]
RULES = [ROOT / "deploy" / "prometheus" / name for name in ("rules.yml", "alerts.yml")]
BOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
PROMTOOL = shutil.which("promtool")

LABELS = {
    f"{metric.name}{suffix}": set(metric.labels)
    | ({"le"} if suffix == "_bucket" else set())
    for place in metrics_document.places()
    for metric in place.metrics
    for suffix in (
        ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
    )
}
ANY = "plimsoll_http_requests_in_flight"
BY_SCRAPER = {"job", "instance"}
AGENTS = {"node"}
"""Service discovery says whose metrics an agent's are."""


ANY_LABEL = set().union(*LABELS.values()) | BY_SCRAPER | AGENTS
WORDS = {
    *("sum", "avg", "max", "count", "topk", "rate", "increase", "histogram_quantile"),
    *("absent", "abs", "time", "vector", "by", "on", "and", "or"),
}
"""What queries use of PromQL itself."""


def rules() -> Iterator[dict[str, Any]]:
    for path in RULES:
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            yield from group["rules"]


RECORDED = {rule["record"] for rule in rules() if "record" in rule}


def board(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def asked(path: Path) -> list[str]:
    """Every query of a dashboard, those of its variables among them."""
    loaded = board(path)
    targets = [
        target["expr"]
        for panel in loaded["panels"]
        for target in panel.get("targets", ())
    ]
    variables = [
        each["query"]["query"]
        for each in loaded["templating"]["list"]
        if each["type"] == "query"
    ]
    return targets + [
        re.fullmatch(r"label_values\((.+), \w+\)", query)[1] for query in variables
    ]  # type: ignore[index]


def queries() -> dict[str, list[str]]:
    """The expressions of each file."""
    return {
        "rules": [rule["expr"] for rule in rules()],
        **{path.stem: asked(path) for path in BOARDS},
    }


def wrong(expression: str) -> Iterator[str]:
    """What it asks for and is not there; whether it is PromQL at all says Prometheus, below."""
    # Strings may hold anything; ranges hold units.
    bare = re.sub(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'|\[[^\]]*\]', "", expression)
    metrics = re.findall(r"\b(plimsoll[a-z0-9_:]*)(?:\{([^}]*)\})?", bare)
    names = {name for name, _ in metrics}
    if not metrics:
        yield "it asks for nothing of ours"
    known = BY_SCRAPER
    for name, selector in metrics:
        if name in RECORDED:
            continue
        if name not in LABELS:
            yield f"there is no {name}"
            continue
        own = LABELS[name] | BY_SCRAPER
        own |= AGENTS if name.startswith("plimsoll_agent_") else set()
        known = known | own
        if unknown := set(re.findall(r"(\w+)\s*(?:=|!)", selector)) - own:
            yield f"there is no {name} with {unknown}"
    if names & RECORDED:
        known = ANY_LABEL
    words = set(re.findall(r"\b[a-zA-Z_:][a-zA-Z0-9_:]*", bare))
    # A label, or a metric of another name than ours, as one that is written wrongly has.
    in_selectors = set(re.findall(r"\w+", " ".join(each for _, each in metrics)))
    if odd := words - known - WORDS - names - in_selectors:
        yield f"{odd} is no label"


def test_every_query_asks_for_what_is_there() -> None:
    boards = ["agents", "cost", "decisions", "fleet", "slo"]
    assert [path.stem for path in BOARDS] == boards
    found = [
        f"{name}: {what}: {each}"
        for name, expressions in queries().items()
        for each in expressions
        for what in wrong(each)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("vector(1)", "it asks for nothing"),
        ("sum(plimsoll_nothing_total)", "there is no plimsoll_nothing_total"),
        (f'{ANY}{{node="a"}}', "{'node'}"),
        (f"sum by (nonsense) ({ANY})", "{'nonsense'} is no label"),
        (f"sum by (le) ({ANY})", "{'le'} is no label"),
        (f"{ANY} / on (nonsense) {ANY}", "{'nonsense'} is no label"),
        (f"{ANY} / plimsol_nothing_total", "{'plimsol_nothing_total'} is no label"),
    ],
)
def test_a_wrong_query_would_be_seen(expression: str, told: str) -> None:
    (what,) = wrong(expression)
    assert told in what


def test_alerts_say_how_urgent_they_are_what_is_wrong_and_what_to_do() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts) > 10
    for rule in alerts:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert min(map(len, rule["annotations"].values())) > 15


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_panels_of_a_dashboard_have_places_units_and_a_data_source_of_the_users(
    path: Path,
) -> None:
    loaded = board(path)
    assert loaded["uid"] == f"plimsoll-{path.stem}" and loaded["title"].startswith(
        "Plimsoll / "
    )
    panels = loaded["panels"]
    assert (
        len({panel["id"] for panel in panels})
        == len({panel["title"] for panel in panels})
        == len(panels)
    )
    for panel in panels:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    variables = {each["name"] for each in loaded["templating"]["list"]}
    used = {name for query in asked(path) for name in re.findall(r"\$(\w+)", query)}
    assert used <= variables and "datasource" in variables


def promtool(*arguments: str) -> None:
    assert PROMTOOL is not None
    run = subprocess.run(
        [PROMTOOL, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


# On the machine that decides whether a change may land, they fail instead.
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None and not os.environ.get("CI"), reason="promtool is not here"
)


@needs_promtool
def test_prometheus_takes_the_rules_and_they_find_what_they_should() -> None:
    promtool("check", "rules", *map(str, RULES))
    promtool("test", "rules", str(Path(__file__).parent / "prometheus_rules.test.yml"))


@needs_promtool
def test_prometheus_takes_the_configuration_once_the_token_is_there(
    tmp_path: Path,
) -> None:
    folder = shutil.copytree(ROOT / "deploy" / "prometheus", tmp_path / "prometheus")
    # Its header says that the operator puts it there; without it Prometheus refuses to start.
    (folder / "viewer.token").write_text("plm_a_token_of_scope_viewer")

    promtool("check", "config", str(folder / "prometheus.yml"))


@needs_promtool
def test_prometheus_takes_every_query_of_the_dashboards(tmp_path: Path) -> None:
    queries = [query for path in BOARDS for query in asked(path)]
    listed = [
        {"record": f"query:number:{number}", "expr": query}
        for number, query in enumerate(queries)
    ]
    (tmp_path / "rules.yml").write_text(
        json.dumps({"groups": [{"name": "dashboards", "rules": listed}]})
    )
    promtool("check", "rules", str(tmp_path / "rules.yml"))


def test_every_token_is_sent_as_a_bearer_s() -> None:
    # Prometheus 2.42 has no type of its own for service discovery: it sends the bare token, which the API refuses.
    config = yaml.safe_load(
        (ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    )
    asking = [
        each
        for job in config["scrape_configs"]
        for each in (job, *job.get("http_sd_configs", ()))
    ]
    kinds = [
        each["authorization"].get("type") for each in asking if "authorization" in each
    ]
    assert kinds == ["Bearer"] * 2
