"""`plimsoll fit`: from measurements to fits, offline."""

import json
from pathlib import Path

import pytest

from solvers.predict.data.fit_json import fits_from_json
from tests.app.runner import Result, cli

SAMPLES = Path(__file__).parents[3] / "data" / "measurements" / "samples.csv"
HEADER = "network,gpu_type,batch,sm_percent,latency_ms"
TECHNIQUE = ("--technique", "linear_fractional")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """What was said, and the file; the plot is next to it."""
    path = tmp_path_factory.mktemp("fit") / "fit.json"
    plot = path.with_suffix(".svg")
    return cli("fit", SAMPLES, "-o", path, "--plot", plot, *TECHNIQUE), path


def test_fits_go_to_a_file_and_a_table_to_the_terminal(
    fitted: tuple[Result, Path],
) -> None:
    result, path = fitted
    assert (result.code, result.err) == (0, "")
    fits = fits_from_json(path.read_text())
    assert [(fit.group.network, fit.technique) for fit in fits.of("latency_ms")] == [
        ("alexnet", "linear_fractional"),
        ("resnet50", "linear_fractional"),
    ]
    assert {fit.source for fit in fits.fits} == {str(SAMPLES)}
    lines = result.out.splitlines()
    assert (
        " ".join(lines[0].split())
        == "NETWORK GPU TYPE SAMPLES TECHNIQUE ERROR P90 NEXT BEST"
    )
    assert lines[1].split()[:4] == ["alexnet", "V100", "30", "linear_fractional"]
    assert float(lines[1].split()[4]) < 2.0
    assert lines[-2:] == [f"Wrote {path}", f"Wrote {path.with_suffix('.svg')}"]
    assert max(map(len, lines[:-2])) <= 80


def test_auto_takes_the_technique_with_the_least_error_and_names_the_next_best() -> (
    None
):
    result = cli("fit", SAMPLES, "-o", "-")
    assert result.code == 0
    document = json.loads(result.out)  # The table stays out of its way.
    (chosen, *_) = [fit for fit in document["fits"] if fit["quantity"] == "latency_ms"]
    errors = [entry["cross_validated_error"] for entry in chosen["rejected"]]
    assert chosen["quality"]["cross_validated_error"] <= errors[0] <= errors[-1]
    (line, *_) = [
        line for line in result.err.splitlines() if line.startswith("alexnet")
    ]
    assert line.split()[-1] == chosen["rejected"][0]["technique"]


def test_a_plot_is_drawn_beside_the_fits(
    tmp_path: Path, fitted: tuple[Result, Path]
) -> None:
    drawn = fitted[1].with_suffix(".svg").read_text()
    assert drawn.startswith("<svg")
    piped = cli("fit", SAMPLES, "--plot", "-", "-o", tmp_path / "fit.json", *TECHNIQUE)
    assert piped.out == drawn
    assert piped.err.splitlines()[-1] == f"Wrote {tmp_path / 'fit.json'}"


def test_what_cannot_be_fitted_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"{HEADER}\nn,g,1,50,nan\n")
    result = cli("fit", path)
    assert (result.code, result.out) == (1, "")
    assert (
        result.err
        == f"Error: {path}:2: column latency_ms: must be a number above 0, not 'nan'\n"
    )
    assert "no technique is called" in cli("fit", SAMPLES, "--technique", "magic").err
    unwritten = cli("fit", SAMPLES, "-o", tmp_path / "no" / "fit.json", *TECHNIQUE)
    assert (unwritten.code, unwritten.err.startswith("Error: cannot write ")) == (
        1,
        True,
    )


def test_a_network_with_too_few_samples_is_left_out_and_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"{HEADER}\n" + "n,g,1,50,4\n" * 5)
    alone = cli("fit", path, "-o", tmp_path / "fit.json")
    assert (alone.code, alone.out) == (1, "")
    assert alone.err.startswith(
        "Error: too little data for any technique: n on g (5 samples)\nHint: measure more"
    )
    assert not (tmp_path / "fit.json").exists()
    result = cli("fit", SAMPLES, path, "-o", tmp_path / "fit.json", *TECHNIQUE)
    assert result.code == 0
    assert (
        result.err
        == "Left out, with too little data for any technique: n on g (5 samples)\n"
    )
