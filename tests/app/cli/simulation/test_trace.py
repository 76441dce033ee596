"""`plimsoll trace`: files in, files out, tables for people, and wrong usage."""

import json
from pathlib import Path

import pytest
import yaml

from tests.app.runner import Result, cli

SQUARE = "second,a,b\n" + "".join(
    f"{second},{2 if second % 60 < 30 else 6},1\n" for second in range(1800)
)
JOBS = "# source: mine\nsubmit_s,duration_s,gpus,name\n0,1800,2,a\n10,60,0.5,b\n7200,3600,1,c\n"


def trace(words: str, *others: str | Path, stdin: str = "") -> Result:
    return cli(f"trace {words}", *others, stdin=stdin)


def done(words: str, *others: str | Path, stdin: str = "") -> str:
    """What a command that ends well writes to stdout."""
    result = trace(words, *others, stdin=stdin)
    assert result.code == 0, result.err
    return result.out


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_an_import_says_what_was_written_and_what_to_do_next(tmp_path: Path) -> None:
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("t_s,context_tokens\n0.1,5\n0.2,5\n2.5,5\n")
    assert done("import azure-llm", source, "-o", target).splitlines() == [
        f"Wrote {target}",
        f"3 steps of 1 s (3s), 1 series, 1.0 rps together; look at it with `plimsoll trace describe {target}`",
    ]
    assert target.read_text().splitlines() == [
        "# source: Azure LLM inference trace, AzurePublicDataset; "
        "cite the paper of its year: Splitwise (2023), DynamoLLM (2024), ModServe (2025)",
        "# licence: CC BY 4.0 as published",
        "second,requests",
        "0,2",
        "1,0",
        "2,1",
    ]


def test_what_was_assumed_of_a_file_is_said_on_stderr() -> None:
    result = trace("import rates - --time-column When", stdin="when,rate\n0,5\n30,5\n")
    assert rows(result.out) == ["second,rate", "0,150", "30,150"]
    assert "Note: rate: cells are requests per second; --values counts" in result.err
    counts = "import rates - --time-column when --values counts"
    assert rows(done(counts, stdin="when,rate\n0,5\n30,5\n"))[1] == "0,5"


def test_a_description_shows_every_series() -> None:
    assert done("describe -", stdin="# source: mine\n" + SQUARE).splitlines() == [
        "1,800 steps of 1 s (30m), 2 series, 5.0 rps together",
        "source: mine",
        "SERIES  MEAN RPS  P99  PEAK  D 1 S  D 10 S  D 60 S  C 60 S",
        "a            4.0  6.0   6.0    1.0    10.1     0.0    1.00  ████████████████",
        "b            1.0  1.0   1.0    0.0     0.0     0.0       -  ████████████████",
    ]


def test_a_job_list_is_described_in_words() -> None:
    assert done("describe -", stdin=JOBS).splitlines() == [
        "3 jobs, submitted within 2h",
        "source: mine",
        "1.5 jobs an hour, dispersion by the hour -  █▁▁▁▁▁▁▁▁▁▁▁▁▁▁▅",
        "duration: half at most 30m, 95 % at most 57m",
        "1.17 GPUs a job, at most 2; 2 GPU-hours",
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--factor 2", ["second,a,b", "0,2,4", "1,6,8"]),
        ("--factor b=x0.5", ["second,a,b", "0,1,1", "1,3,2"]),
        ("--mean 10", ["second,a,b", "0,5,6.66666666667", "1,15,13.3333333333"]),
        ("--mean a=1,b=6", ["second,a,b", "0,0.5,4", "1,1.5,8"]),
        ("--smooth 3s", ["second,a,b", "0,2,3", "1,2,3"]),
        # Twice as slow: steps of two seconds at the same rates.
        ("--time 0.5 --factor a=3", ["second,a,b", "0,6,4", "2,18,8"]),
    ],
)
def test_scaling_changes_rates_or_time(options: str, expected: list[str]) -> None:
    assert (
        rows(done(f"scale - {options}", stdin="second,a,b\n0,1,2\n1,3,4\n")) == expected
    )


def test_slicing_takes_a_time_and_some_series() -> None:
    cut = rows(done("slice - --from 29s --to 32s --columns b,a", stdin=SQUARE))
    assert cut == ["second,b,a", "0,1,2", "1,1,6", "2,1,6"]
    assert len(rows(done("slice - --from 0s --to 1m", stdin=SQUARE))) == 61


@pytest.mark.parametrize(
    "shape",
    [
        "diurnal --mean 20 --period 1h --phase 15m --bursts 0.5 --bursts-of code",
        "spike --mean 20 --at 3m --length 30s --factor 3 --ramp 10s",
        "mmpp --level 10:60s --level 100:5s --name service",
        "flash-crowds --mean 40 --every 2m --factor 2:3 --decay 5s:1m --noise 0",
        "flash-crowds --mean 40 --factor ' 2: 3'",
        "mmpp --level '10 :60s' --level ' 100:5s'",
    ],
    ids=lambda shape: shape.split()[0],
)
def test_what_is_made_repeats_by_the_line_in_its_note(shape: str) -> None:
    made = done(f"generate {shape} --duration 10m --seed 7 --draw")
    note, header, *cells = made.splitlines()
    assert (header, len(cells)) == ("second,service", 600)
    words = note.removeprefix("# source: plimsoll trace ")
    assert done(words) == made
    assert done(words.replace("--seed 7", "--seed 8")) != made


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("import netflix -", "netflix"),
        (
            "import philly - --top 3",
            "only azure-functions, requests and azure-llm take it",
        ),
        ("import azure-llm - --missing zero", "only rates takes it"),
        ("import jobs - --by user", "only rates, requests and azure-llm take it"),
        ("import rates - --time-unit weeks", "'weeks'"),
        ("scale -", "give --factor, --mean, --smooth or --time"),
        ("scale - --factor 2 --mean 2", "either --factor or --mean"),
        ("scale - --factor much", "'much' is not a number"),
        ("scale - --mean a=1,a=2", "names a twice"),
        ("slice - --from soon", "'soon' is not a duration"),
        ("generate mmpp --level 1:9s", "at least two"),
        ("generate mmpp --level 1:9s --level 5", "RPS:TIME"),
        ("generate mmpp --level 1:9s --level x:9s", "'x' is not a number"),
        ("generate spike --mean 1 --duration 1.5s", "whole number of seconds"),
        ("generate diurnal --mean 1 --amplitude 2", "--amplitude"),
        ("generate flash-crowds --mean 1 --mean 2", "2 means for 1 series"),
        ("generate flash-crowds --mean 1 --factor 5:2", "the lower one first"),
        ("generate flash-crowds --mean 1 --factor nan:2", "two ends of at least 1"),
        (
            "generate flash-crowds --mean 1 --factor 0.5:0.8",
            "'--factor': '0.5:0.8' must be two ends of at least 1",
        ),
        ("generate flash-crowds --mean 1 --decay 9s:1s", "the lower one first, such"),
        ("generate flash-crowds --mean 1 --every 0.03s", "'--every': about 60,000"),
        ("generate flash-crowds --mean 1 --decay 0s:9s", "above 0"),
        ("generate spike --mean inf", "--mean"),
        ("generate spike --mean 1 --factor inf", "rates must be finite"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_is_wrong(
    arguments: str, words: str
) -> None:
    result = trace(arguments, stdin=SQUARE)
    assert (result.code, result.out) == (2, "")
    assert words in result.err


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        ("describe -", "second,a\n0,1\n1,x\n", "stdin:3: column a: must be a"),
        ("describe nowhere.csv", "", "cannot read nowhere.csv"),
        ("scale - --factor c=2", SQUARE, "no series is called 'c'"),
        ("scale - --factor 2", JOBS, "takes only --time"),
        ("scale - --time 2 --smooth 9s", JOBS, "takes only --time"),
        ("scale - --smooth 1s", SQUARE, "at least three steps"),
        ("slice - --columns a", JOBS, "--columns is for traces"),
        ("slice - --to 1h", SQUARE, "the trace ends after 1800 s"),
        ("slice - --columns c", SQUARE, "no series is called 'c'"),
        ("generate diurnal --mean 1 --name a --name a --duration 9s", "", "two series"),
        ("scale - --factor 2 -o /nonexistent/x.csv", SQUARE, "cannot write /"),
    ],
)
def test_what_cannot_be_done_ends_with_1(
    arguments: str, stdin: str, words: str
) -> None:
    result = trace(arguments, stdin=stdin)
    assert (result.code, result.out) == (1, "")
    assert words in result.err


def test_a_day_is_described_by_its_hours() -> None:
    day = "second,a\n" + "".join(
        f"{3600 * hour},{3600 if hour != 14 else 9000}\n" for hour in range(24)
    )
    assert done("describe -", stdin=day).splitlines()[-1] == (
        "a: busiest in hour 14 (2.35 × the mean), quietest in hour 0 (0.94 ×)"
    )


def test_json_has_the_same_for_programs() -> None:
    document = json.loads(done("describe - -o json", stdin=SQUARE))
    assert (document["duration_s"], document["step_s"], document["windows_s"]) == (
        1800.0,
        1.0,
        [1.0, 10.0, 60.0],
    )
    assert [series["name"] for series in document["series"]] == ["a", "b"]
    assert document["series"][0]["autocorrelation"] == pytest.approx(1.0)
    assert yaml.safe_load(done("describe - -o yaml", stdin=SQUARE)) == document
    jobs = json.loads(done("describe - -o json", stdin=JOBS))
    assert (jobs["jobs"], jobs["gpu_hours"], jobs["notes"]) == (
        3,
        pytest.approx(2.0 + 30 / 3600),
        ["source: mine"],
    )
