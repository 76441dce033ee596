"""`plimsoll trainer` as a process: it ends when all is done, keeps what it did, and goes on from there."""

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.waiting import PATIENCE_S, until

MODULE = "tests.agents.serving.engines.torch_networks"


def trainer(kept: Path, iterations: int, *words: str) -> "subprocess.Popen[str]":
    """One that keeps its checkpoint there."""
    command = (
        f"{sys.executable} -m agents.trainer.trainer --task t1 --network line-training"
    )
    checkpoint = ("--iterations", str(iterations), "--checkpoint", str(kept))
    return subprocess.Popen(
        (*command.split(), *checkpoint, *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def begun(process: "subprocess.Popen[str]") -> dict[str, object]:
    """What it says when it listens."""
    assert process.stdout is not None
    said: dict[str, object] = json.loads(process.stdout.readline())
    return said


def ended(process: "subprocess.Popen[str]") -> str:
    """What it wrote into its log."""
    return process.communicate(timeout=PATIENCE_S)[1]


def done(kept: Path) -> int:
    return int(json.loads(kept.read_bytes())["done_iterations"])


def test_sigterm_keeps_a_checkpoint_to_go_on_from(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first = trainer(kept, 1_000_000, "--times-ms", "1:1")
    assert begun(first)["pid"] == first.pid
    first.send_signal(signal.SIGTERM)
    ended(first)
    assert first.returncode == 143
    before = done(kept)
    second = trainer(kept, before + 3, "--times-ms", "1:1")
    assert f"goes on from iteration {before} of {before + 3}" in ended(second)
    assert (second.returncode, done(kept)) == (0, before + 3)


@pytest.mark.parametrize("states", [("asked", "offloaded"), ("offloaded",)])
def test_sigterm_keeps_what_was_done_also_where_the_memory_is_to_go_or_gone(
    tmp_path: Path, states: tuple[str, ...]
) -> None:
    kept = tmp_path / "kept"
    # Nothing is kept but at the end: the first checkpoint would come after 30 s.
    running = trainer(kept, 1_000_000, "--times-ms", "1:1000")
    url = begun(running)["url"]
    with ThreadPoolExecutor(1) as aside:
        offload = aside.submit(put, f"{url}/offload")
        until(lambda: status(f"{url}")["state"] in states)
        running.send_signal(signal.SIGTERM)
        ended(running)
        # Moved, refused, or cut off by its end.
        assert offload.result() in (200, 409, None)
    assert (running.returncode, done(kept) >= 1) == (143, True)


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


def test_a_damaged_checkpoint_is_named_and_not_written_over(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("wool")
    process = trainer(kept, 3)
    assert f"checkpoint {kept} cannot be read, remove it" in ended(process)
    assert (process.returncode, kept.read_text()) == (1, "wool")


@pytest.mark.parametrize("kind", ["training", "offline"])
def test_pytorch_goes_on_from_what_it_kept(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("torch")
    words = f"--engine torch --factory-module {MODULE} --input x:FP32:3 --device cpu --kind {kind}"
    for iterations, start in ((4, 0), (9, 4)):
        process = trainer(tmp_path / "kept", iterations, *words.split())
        said = ended(process)
        assert f"goes on from iteration {start} of {iterations}" in said
        assert process.returncode == 0, said
    assert (tmp_path / "kept.pt").exists() == (kind == "training")
