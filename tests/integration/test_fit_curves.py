"""Curves over the API: their points are the predictor's own answers, and the error is what `plimsoll fit` prints."""

from pathlib import Path

import pytest

from solvers.predict.data.fit import Fits
from solvers.predict.data.fit_json import fit_from_document, fits_from_json
from solvers.predict.data.samples import make_queries
from solvers.predict.estimate.predict import predict_latency
from tests.app.runner import cli
from tests.integration.api_harness import Api, gpu_type
from tests.integration.measured import fit_here, measured

pytestmark = pytest.mark.integration

PATH = "networks/resnet50/fits/curves?gpu_type=T4"
BESIDE_ANOTHER = {
    **measured()[0],
    "latency_ms": 40.0,
    "neighbours": [{"network": "vgg16", "batch": 8, "sm_percent": 40}],
}


def test_points_are_the_predictors_own_answers(api: Api) -> None:
    api.call(
        "POST", "networks/resnet50/samples", {"samples": [*measured(), BESIDE_ANOTHER]}
    )
    fit_here(api)
    found = api.get(PATH)
    fit = fit_from_document(api.get(f"fits/{found['fit']['id']}")["document"])
    points = [
        (curve["batch"], *point)
        for curve in found["curves"]
        for point in curve["points"]
    ]
    batches, shares, latency_ms = zip(*points, strict=True)
    size = len(points)
    queries = make_queries(
        ["resnet50"] * size, ["T4"] * size, batch=batches, sm_percent=shares
    )
    assert (
        list(latency_ms)
        == predict_latency(Fits(fits=(fit,)), queries).latency_ms.tolist()
    )
    assert [curve["batch"] for curve in found["curves"]] == [1, 2, 4, 8]
    assert [
        (curve["points"][0][0], curve["points"][-1][0]) for curve in found["curves"]
    ] == [(20, 100)] * 4


def test_samples_stand_beside_what_the_fit_says_of_them(api: Api) -> None:
    api.call(
        "POST", "networks/resnet50/samples", {"samples": [*measured(), BESIDE_ANOTHER]}
    )
    fit_here(api)
    found = api.get(PATH)
    alone = [each for each in found["measured"] if each["is_on_curve"]]
    assert (len(alone), found["samples"], len(found["measured"])) == (20, 21, 21)
    (other,) = [each for each in found["measured"] if not each["is_on_curve"]]
    assert (other["latency_ms"], other["fitted_ms"]) == (40.0, None)
    curve = {each["batch"]: dict(each["points"]) for each in found["curves"]}
    ends = [each for each in alone if each["sm_percent"] in (20, 100)]
    assert [each["fitted_ms"] for each in ends] == pytest.approx(
        [curve[each["batch"]][each["sm_percent"]] for each in ends]
    )
    assert found["setting"] == {
        "clock_mhz": None,
        "time_quota_percent": 100.0,
        "power_limit_w": None,
    }


def test_the_error_is_what_the_command_says_of_the_same_samples(
    api: Api, tmp_path: Path
) -> None:
    names = ("batch", "sm_percent", "latency_ms", "memory_mib")
    lines = [
        ",".join(["resnet50", "T4", *(repr(each[name]) for name in names)])
        for each in measured()
    ]
    (tmp_path / "samples.csv").write_text(
        "\n".join([f"network,gpu_type,{','.join(names)}", *lines])
    )
    answer = cli("fit", tmp_path / "samples.csv", "-o", tmp_path / "fit.json")
    assert answer.code == 0, answer.err
    api.call("POST", "networks/resnet50/samples", {"samples": measured()})
    fit_here(api)
    found = api.get(PATH)["fit"]
    (told,) = fits_from_json((tmp_path / "fit.json").read_text()).of("latency_ms")
    assert found["technique"] == told.technique
    assert found["cross_validated_error"] == pytest.approx(
        told.quality.cross_validated_error, rel=1e-6
    )
    assert f"{100 * found['cross_validated_error']:.1f} %" in answer.out


def test_what_was_neither_measured_nor_fitted_is_empty_and_names_are_checked(
    api: Api,
) -> None:
    api.put("gpu-types/V100", gpu_type("V100"))
    found = api.get("networks/resnet50/fits/curves?gpu_type=V100")
    assert found["fit"] is None
    assert found["setting"] is None
    assert found["curves"] == []
    assert found["measured"] == []
    api.call("POST", "networks/resnet50/samples", {"samples": measured()[:3]})
    found = api.get(PATH)
    assert (found["fit"], found["curves"], len(found["measured"])) == (None, [], 3)
    assert api.status("GET", "networks/nobody/fits/curves?gpu_type=T4") == 404
    assert api.status("GET", "networks/resnet50/fits/curves?gpu_type=T5") == 422


def test_answers_are_bounded(api: Api) -> None:
    many = [
        {
            "gpu_type": "T4",
            "batch": batch,
            "sm_percent": share,
            "latency_ms": batch + share,
        }
        for batch in range(1, 31)
        for share in range(1, 21)
    ]
    api.call("POST", "networks/resnet50/samples", {"samples": many})
    found = api.get(PATH)
    assert (len(found["measured"]), found["samples"]) == (400, 600)
