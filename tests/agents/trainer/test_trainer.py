"""`plimsoll trainer` as a process: it ends when all is done, keeps what it did, and goes on from there."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

MODULE = "tests.agents.serving.engines.torch_networks"
PATIENCE_S = 120.0


def trainer(*words: str) -> "subprocess.Popen[str]":
    command = [
        sys.executable,
        "-m",
        "agents.trainer.trainer",
        "--task",
        "t1",
        "--network",
        "line-training",
        *words,
    ]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_sigterm_keeps_a_checkpoint_to_go_on_from(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first = trainer(
        "--iterations", "1000000", "--times-ms", "1:1", "--checkpoint", str(kept)
    )
    assert first.stdout is not None
    assert json.loads(first.stdout.readline())["pid"] == first.pid
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=PATIENCE_S)
    done = json.loads(kept.read_bytes())["done_iterations"]
    assert first.returncode == 143
    second = trainer(
        "--iterations", str(done + 3), "--times-ms", "1:1", "--checkpoint", str(kept)
    )
    _, said = second.communicate(timeout=PATIENCE_S)
    assert (
        second.returncode,
        f"goes on from iteration {done} of {done + 3}" in said,
    ) == (0, True), said
    assert json.loads(kept.read_bytes())["done_iterations"] == done + 3


@pytest.mark.parametrize("states", [("asked", "offloaded"), ("offloaded",)])
def test_sigterm_keeps_what_was_done_also_where_the_memory_is_to_go_or_gone(
    tmp_path: Path, states: tuple[str, ...]
) -> None:
    kept = tmp_path / "kept"
    # Nothing is kept but at the end: the first checkpoint would come after 30 s.
    running = trainer(
        "--iterations", "1000000", "--times-ms", "1:1000", "--checkpoint", str(kept)
    )
    assert running.stdout is not None
    url = json.loads(running.stdout.readline())["url"]
    with ThreadPoolExecutor(1) as aside:
        offload = aside.submit(put, f"{url}/offload")
        until(lambda: status(url)["state"] in states)
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=PATIENCE_S)
        assert offload.result() in (200, 409, None), (
            "moved, refused, or cut off by its end"
        )
    assert running.returncode == 143
    assert json.loads(kept.read_bytes())["done_iterations"] >= 1


def put(url: str) -> int | None:
    try:
        with urlopen(Request(url, method="PUT"), timeout=PATIENCE_S) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code
    except OSError:
        return None


def status(url: str) -> dict[str, object]:
    with urlopen(f"{url}/status", timeout=PATIENCE_S) as answer:
        found: dict[str, object] = json.load(answer)
        return found


def until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end_s, "it did not come about"
        time.sleep(0.02)


def test_a_damaged_checkpoint_is_named_and_not_written_over(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("wool")
    ended = trainer("--iterations", "3", "--checkpoint", str(kept))
    _, said = ended.communicate(timeout=PATIENCE_S)
    assert (ended.returncode, kept.read_text()) == (1, "wool")
    assert f"checkpoint {kept} cannot be read, remove it" in said


@pytest.mark.parametrize("kind", ["training", "offline"])
def test_pytorch_goes_on_from_what_it_kept(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("torch")
    words = (
        "--engine",
        "torch",
        "--factory-module",
        MODULE,
        "--input",
        "x:FP32:3",
        "--device",
        "cpu",
        "--kind",
        kind,
    )
    kept = tmp_path / "kept"
    for iterations, start in ((4, 0), (9, 4)):
        ended = trainer(
            "--iterations", str(iterations), "--checkpoint", str(kept), *words
        )
        _, said = ended.communicate(timeout=PATIENCE_S)
        assert (
            ended.returncode,
            f"goes on from iteration {start} of {iterations}" in said,
        ) == (0, True), said
    assert (tmp_path / "kept.pt").exists() == (kind == "training")
