"""PyTorch networks on the CPU; skipped where PyTorch is not installed."""

import argparse
from pathlib import Path

import pytest

from agents.base.device import LaunchFailed
from agents.serving.arguments import make_parser
from agents.serving.engines.errors import EngineLost
from agents.serving.engines.tensors import Tensor, unpack_numbers
from agents.serving.engines.torch_engine import (
    TorchEngine,
    make_torch_engine,
)
from tests.agents.harness import all_of, client_of, fp32, ready, worker
from tests.waiting import PATIENCE_S, run

torch = pytest.importorskip("torch")
MODULE = "tests.agents.serving.engines.torch_networks"
ROW = "x:FP32"


def options(*arguments: str) -> argparse.Namespace:
    return make_parser().parse_args(
        ["--service", "chat", "--engine", "torch", "--device", "cpu", *arguments]
    )


def loaded(network: str, *inputs: str, arguments: tuple[str, ...] = ()) -> TorchEngine:
    """The engine of one of the tests' networks."""
    given = [text for each in inputs or (ROW,) for text in ("--input", each)]
    engine = make_torch_engine(
        options("--factory-module", MODULE, "--network", network, *given, *arguments)
    )
    engine.load()
    return engine


def answers(
    engine: TorchEngine, *inputs: Tensor
) -> list[tuple[str, str, tuple[int, ...], list[float]]]:
    return [
        (each.name, each.datatype, each.shape, unpack_numbers(each))
        for each in engine.run(inputs)
    ]


def test_a_factorys_network_computes() -> None:
    # 2x + 1
    found = answers(loaded("line"), fp32(1.0, 5.0))
    assert found == [("output0", "FP32", (2,), [3.0, 11.0])]
    # Networks are not trained here.
    found = answers(loaded("dropping"), fp32(4.0))
    assert found == [("output0", "FP32", (1,), [4.0])]
    # Outputs without names are numbered, and keep their datatype.
    assert answers(loaded("several"), fp32(0.5, 2.5)) == [
        ("output0", "BOOL", (2,), [False, True]),
        ("output1", "INT64", (2,), [0, 2]),
    ]


def test_weights_come_from_a_file_of_the_directory(tmp_path: Path) -> None:
    torch.save(
        {"weight": torch.tensor(3.0), "bias": torch.tensor(-1.0)}, tmp_path / "line.pt"
    )
    engine = loaded(
        "line", arguments=("--network-dir", str(tmp_path), "--weights", "line.pt")
    )
    assert answers(engine, fp32(2.0)) == [("output0", "FP32", (1,), [5.0])]  # 3 * 2 - 1


class Trap:
    """Makes a file where it is unpickled."""

    def __init__(self, sprung: Path) -> None:
        self._sprung = sprung

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path(self._sprung).touch, ()  # type: ignore[return-value]


def test_weights_cannot_run_code(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    torch.save(Trap(sprung), tmp_path / "trap.pt")
    with pytest.raises(LaunchFailed, match="network line cannot be loaded"):
        loaded(
            "line", arguments=("--network-dir", str(tmp_path), "--weights", "trap.pt")
        )
    assert not sprung.exists()
    torch.load(tmp_path / "trap.pt", weights_only=False)
    assert sprung.exists()  # The trap is a trap.


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_torchscript_file_is_served(tmp_path: Path) -> None:
    from tests.agents.serving.engines.torch_networks import Line

    path = tmp_path / "line.ts"
    torch.jit.trace(Line(), torch.zeros(2)).save(str(path))
    engine = make_torch_engine(
        options("--network-dir", str(tmp_path), "--network", "line.ts", "--input", ROW)
    )
    engine.load()
    assert answers(engine, fp32(1.0, 2.0, 3.0)) == [
        ("output0", "FP32", (3,), [3.0, 5.0, 7.0])
    ]


def test_a_cuda_error_loses_the_engine() -> None:
    with pytest.raises(EngineLost, match="does not come back in this process"):
        loaded("lost").run((fp32(1.0),))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (f"--factory-module {MODULE} --network absent", "no public function 'absent'"),
        (f"--factory-module {MODULE} --network _lost", "no public function '_lost'"),
        (f"--factory-module {MODULE} --network broken", "network cannot be made"),
        ("--factory-module no.such --network x", "module no.such cannot be imported"),
        ("--network line.ts", "--network-dir"),
        ("--network-dir . --network ../line.ts", "there is no"),
        ("--network-dir . --network README.md", "README.md cannot be loaded"),
    ],
)
def test_networks_that_cannot_be_loaded_say_why(arguments: str, words: str) -> None:
    engine = make_torch_engine(options(*arguments.split(), "--input", ROW))
    with pytest.raises(LaunchFailed, match=words):
        engine.load()


@pytest.mark.integration
def test_a_real_worker_serves_pytorch_until_its_gpu_is_lost() -> None:
    async def serve(url: str) -> None:
        async with client_of(url) as client:
            await ready(client)
            replies = await all_of([client.send(float(number)) for number in range(32)])
            shaped = await client.call("POST", "/v2/models/chat/infer", {"inputs": []})
        expected = [[2.0 * number + 1.0] for number in range(32)]
        assert [reply.numbers for reply in replies] == expected
        assert shaped.status == 400

    async def lose(url: str) -> None:
        async with client_of(url) as client:
            await ready(client)
            failed = await client.infer(1.0)
        assert failed.status == 500
        assert "does not come back" in str(failed.json["detail"])

    words = (
        f"--engine torch --device cpu --factory-module {MODULE} --input {ROW} --network"
    )
    with worker(
        *words.split(), *["line", "--batch", "8", "--delay-ms", "5"]
    ) as started:
        run(serve(started.url))
    with worker(*words.split(), "lost") as started:
        run(lose(started.url))
        assert started.process.wait(PATIENCE_S) == 1
