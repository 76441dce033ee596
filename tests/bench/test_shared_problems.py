"""Plans of two trees are compared by digest: the same is told, and so is every plan that differs."""

import json
from pathlib import Path

import pytest

from bench import report, shared_problems
from bench.plan_runs import FOLDER

IS_THERE = (FOLDER / "synthetic_4x8_s1.json.gz").is_file()
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not IS_THERE, reason="no shared problems"),
]
SMALL = ["--problems", "synthetic_4x8_s1", "--policies", "hetsev_greedy", "k8s_hpa"]


def test_a_plan_that_differs_from_the_other_tree_s_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    results = tmp_path / "shared_problems.json"
    assert shared_problems.main(SMALL) == 0
    assert shared_problems.main([*SMALL, "--compare", str(results)]) == 0
    assert "2 of 2 plans are the same" in capsys.readouterr().out
    document = json.loads(results.read_text(encoding="utf-8"))
    document["rows"][1]["plan"] = "of another tree"
    results.write_text(json.dumps(document), encoding="utf-8")
    assert shared_problems.main([*SMALL, "--compare", str(results)]) == 1
    assert "another plan: k8s_hpa on synthetic_4x8_s1" in capsys.readouterr().out
