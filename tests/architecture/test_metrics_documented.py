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


def test_no_name_means_two_things() -> None:
    names = [metric.name for metric in METRICS]
    assert sorted(names) == sorted(set(names))


def test_names_have_our_prefix_base_units_and_total_where_they_count() -> None:
    assert all(re.fullmatch(r"plimsoll_[a-z0-9_]+", metric.name) for metric in METRICS)
    assert [
        metric.name
        for metric in METRICS
        if metric.name.endswith("_total") != (metric.kind == "counter")
    ] == []
    odd = r"_(ms|us|mib|mb|gb|kib|mw|kw|mhz|percent|wh|kwh|minutes|hours)(_total)?$"
    assert {metric.name for metric in METRICS if re.search(odd, metric.name)} == OLDER


def test_every_metric_has_a_sentence_and_labels_that_are_no_ids_of_requests() -> None:
    assert [metric.name for metric in METRICS if len(metric.text) < 5] == []
    labels = {label for metric in METRICS for label in metric.labels}
    assert labels.isdisjoint(
        {
            "path",
            "url",
            "request_id",
            "token",
            "user",
            "address",
            "reason_text",
            "plan_id",
        }
    )


def test_every_place_says_how_it_is_bounded() -> None:
    assert [place.title for place in PLACES if "Bounded" not in place.where] == []
