"""A slice of the campaign: real processes, a few kills and faults, and nothing broken but perhaps the time limits."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bench.campaign.__main__ import PROBLEMS

pytestmark = pytest.mark.integration
# The time is enough for two faults: which ones, the day decides.
SEED = datetime.now(UTC).toordinal()
SLICE = f"--rows kill,fault --seconds 10 --kills 12 --nodes 2 --seed {SEED}"


def test_kills_and_faults_lose_nothing_double_nothing_and_are_told(
    tmp_path: Path,
) -> None:
    out = tmp_path / "campaign.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench.campaign", *SLICE.split(), "--out", str(out)],
        timeout=900.0,
        check=False,
        env={
            name: value
            for name, value in os.environ.items()
            if not name.startswith("PLIMSOLL_")
        },
    )
    said = json.loads(out.read_text())
    # Not what was too slow or not done: tests share their machine, and a slice is short.
    assert said["violations"] == [], SLICE
    assert done.returncode == int(any(said[each] for each in PROBLEMS))
    kills = {each["victim"]: each["kills"] for each in said["rows"] if "victim" in each}
    assert all(count for victim, count in kills.items() if "skipped" not in victim)
    results = {each["result"] for each in said["rows"] if each["row"] == "fault"}
    assert "passed" in results
    assert "failed" not in results
