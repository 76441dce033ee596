"""Every metric is explained where operators look: docs/metrics.md, generated from the metrics themselves."""

import re

from tools.documents import metrics as metrics_document

PLACES = metrics_document.places()
METRICS = [metric for place in PLACES for metric in place.metrics]
OLDER = {"plimsoll_router_latency_ms", "plimsoll_router_arrival_gap_ms"}
"""Named before the rule was: in milliseconds, as the router and its users count."""


def test_the_document_is_up_to_date() -> None:
    written = metrics_document.TARGET.read_text(encoding="utf-8")
    assert written == metrics_document.document(), (
        "run: python -m tools.documents.metrics"
    )


def test_names_have_our_prefix_base_units_and_total_where_they_count() -> None:
    names = [metric.name for metric in METRICS]
    assert sorted(names) == sorted(set(names)), "a name means two things"
    assert all(re.fullmatch(r"plimsoll_[a-z0-9_]+", name) for name in names)
    for metric in METRICS:
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert len(metric.text) >= 5, f"{metric.name} has no sentence"
    odd = r"_(ms|us|mib|mb|gb|kib|mw|kw|mhz|percent|wh|kwh|minutes|hours)(_total)?$"
    assert {name for name in names if re.search(odd, name)} == OLDER


def test_no_label_is_an_id_of_requests_and_every_place_says_how_it_is_bounded() -> None:
    labels = {label for metric in METRICS for label in metric.labels}
    endless = "path url request_id token user address reason_text plan_id"
    assert labels.isdisjoint(endless.split())
    assert [place.title for place in PLACES if "Bounded" not in place.where] == []
