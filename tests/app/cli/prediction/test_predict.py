"""`plimsoll predict`: from fits and queries to latencies, offline."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.app.runner import Result, cli

SAMPLES = Path(__file__).parents[3] / "data" / "measurements" / "samples.csv"
PREDICTED = ["latency_ms", "latency_ms_low", "latency_ms_high", "technique"]


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `plimsoll fit` makes of the samples that stand alone."""
    path = tmp_path_factory.mktemp("fits") / "fit.json"
    lines = [line for line in SAMPLES.read_text().splitlines() if line.count(":") == 0]
    result = cli(
        "fit - -o", path, "--technique", "linear_fractional", stdin="\n".join(lines)
    )
    assert result.code == 0
    return path


def ask(
    fits: Path,
    rows: Sequence[str],
    *arguments: str,
    header: str = "network,gpu_type,batch,sm_percent",
) -> Result:
    return cli("predict", fits, "-", *arguments, stdin="\n".join([header, *rows]))


def test_a_row_per_query_in_order_with_an_interval_around_the_latency(
    fits: Path, tmp_path: Path
) -> None:
    queries = tmp_path / "queries.csv"
    queries.write_text(
        "sm_percent,network,batch,gpu_type\n40,resnet50,4,V100\n100.0,alexnet,16,V100\n40,resnet50,8,V100\n"
    )
    result = cli("predict", fits, queries, "-o", tmp_path / "out.csv")
    assert (result.code, result.out, result.err) == (
        0,
        f"Wrote {tmp_path / 'out.csv'}\n",
        "",
    )
    header, *rows = csv.reader((tmp_path / "out.csv").read_text().splitlines())
    assert header == ["sm_percent", "network", "batch", "gpu_type", *PREDICTED]
    assert [row[:4] for row in rows] == [
        line.split(",") for line in queries.read_text().splitlines()[1:]
    ]
    for row, expected in zip(
        rows, (5.3 / 0.4 + 1.3, 4.6 + 0.4, 9.7 / 0.4 + 1.3), strict=True
    ):
        latency, low, high = map(float, row[4:7])
        assert latency == pytest.approx(expected, rel=0.03)
        assert low < latency < high
        assert row[7] == "linear_fractional"


def test_measured_columns_are_left_out_and_compared(fits: Path) -> None:
    result = cli(
        "predict",
        fits,
        "-",
        stdin=SAMPLES.read_text().split("alexnet,V100,4,40,", maxsplit=2)[0],
    )
    header = next(csv.reader(io.StringIO(result.out)))
    assert header == [
        "network",
        "gpu_type",
        "batch",
        "sm_percent",
        "clock_mhz",
        "neighbours",
        *PREDICTED,
    ]
    assert result.err.startswith("Compared with 14 measured latencies: mean error ")
    assert float(result.err.split("mean error ")[1].split()[0]) < 3.0


def test_power_and_memory_are_added_on_request(fits: Path) -> None:
    plain = ask(fits, ["alexnet,V100,1,50"], "--quantities", "latency")
    assert plain.out == ask(fits, ["alexnet,V100,1,50"]).out
    refused = ask(fits, ["alexnet,V100,1,50"], "--quantities", "latency,memory")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("Error: the fits have no memory_mib\nHint: ")
    assert ask(fits, ["alexnet,V100,1,50"], "--quantities", "latency,colour").code == 2


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["alexnet,V100,1,50", "", "resnet18,T4,1,50"], "Error: stdin:4: column"),
        (["alexnet,V100,0,50"], "Error: stdin:2: column batch: must be at least 1"),
        ([], "Error: stdin: there are no rows below the header"),
    ],
)
def test_queries_that_cannot_be_answered_are_refused_with_their_line(
    fits: Path, rows: list[str], words: str
) -> None:
    result = ask(fits, rows)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(words)


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fits of five networks whose layers the catalogue knows, on a V100; of one also on a T4, three times as slow."""
    lines = ["network,gpu_type,batch,sm_percent,latency_ms"]
    for name, gpu_type, scale in (
        ("resnet18", "V100", 1.8),
        ("resnet34", "V100", 3.4),
        ("resnet50", "V100", 5.0),
        ("resnet101", "V100", 10.1),
        ("resnet152", "V100", 15.2),
        ("resnet50", "T4", 15.0),
    ):
        for batch in (1, 4, 16):
            lines += [
                f"{name},{gpu_type},{batch},{share},{scale * (batch / share + 0.1)}"
                for share in (20, 50, 100)
            ]
    path = tmp_path_factory.mktemp("family") / "fit.json"
    assert (
        cli(
            "fit - -o", path, "--technique", "linear_fractional", stdin="\n".join(lines)
        ).code
        == 0
    )
    return path


def test_rows_of_networks_not_measured_there_are_estimated_and_counted(
    family: Path,
) -> None:
    result = ask(
        family,
        [
            "resnet18,T4,4,50",
            "resnext50_32x4d,V100,4,50",
            "resnet18,V100,4,50",
            "resnet18,T4,1,20",
        ],
    )
    assert result.code == 0
    rows = list(csv.reader(io.StringIO(result.out)))[1:]
    assert [row[-1] for row in rows] == [
        "gpu_type_ratio",
        "layer_counts",
        "linear_fractional",
        "gpu_type_ratio",
    ]
    moved, from_layers, measured = (list(map(float, row[4:7])) for row in rows[:3])
    assert moved[0] == pytest.approx(3.0 * measured[0], rel=0.02)
    assert 3.4 * 0.18 < from_layers[0] < 10.1 * 0.18
    assert moved[2] / moved[1] > 1.5 > measured[2] / measured[1]
    assert (
        result.err
        == "Estimated, as not measured there: 3 of 4 rows: resnet18 on T4, resnext50_32x4d on V100\n"
    )


def test_fits_that_were_edited_are_refused_by_name(fits: Path, tmp_path: Path) -> None:
    edited = tmp_path / "edited.json"
    edited.write_text(fits.read_text().replace('"parameters"', '"parametres"'))
    result = ask(edited, ["alexnet,V100,1,50"])
    assert result.code == 1
    assert result.err.startswith(
        f"Error: {edited}: fits[0].coefficients: cannot be those of linear_fractional for "
    )


def test_an_existing_file_is_replaced_and_kept_when_the_command_fails(
    fits: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.csv"
    out.write_text("older\n")
    assert ask(fits, ["vgg19,V100,1,50"], "-o", str(out)).code == 1
    assert out.read_text() == "older\n"
    assert ask(fits, ["alexnet,V100,1,50"], "-o", str(out)).code == 0
    assert out.read_text().startswith("network,")
    assert ask(
        fits, ["alexnet,V100,1,50"], "-o", str(tmp_path / "no" / "out.csv")
    ).err.startswith("Error: cannot write")
