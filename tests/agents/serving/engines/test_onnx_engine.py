"""ONNX networks on the CPU; skipped where ONNX Runtime is not installed."""

import argparse
from pathlib import Path

import pytest

from agents.base.device import LaunchFailed
from agents.serving.arguments import make_parser
from agents.serving.engines.errors import EngineFailed
from agents.serving.engines.onnx_engine import OnnxEngine, make_onnx_engine
from agents.serving.engines.tensors import (
    Tensor,
    TensorType,
    pack_numbers,
    unpack_numbers,
)
from tests.agents.harness import all_of, client_of, fp32, ready, worker
from tests.agents.serving.engines.onnx_files import FLOAT, INT64, STRING, network
from tests.waiting import run

pytest.importorskip("onnxruntime")


def doubling(element: int, *shape: int | str, operator: str = "Add") -> bytes:
    """A network y = x + x of that kind of numbers."""
    taken = ("x", "x") if operator == "Add" else ("x",)
    kind = (element, shape)
    return network([(operator, taken, "y")], inputs={"x": kind}, outputs={"y": kind})


DOUBLED = doubling(FLOAT, "rows")


def options(folder: Path, content: bytes, *arguments: str) -> argparse.Namespace:
    (folder / "net.onnx").write_bytes(content)
    words = "--service chat --engine onnx --network net.onnx --device cpu --network-dir"
    found = make_parser().parse_args([*words.split(), str(folder), *arguments])
    found.batch_limit = found.batch_limit or 1024
    return found


def engine_of(folder: Path, content: bytes, *arguments: str) -> OnnxEngine:
    return make_onnx_engine(options(folder, content, *arguments))


def test_a_network_computes_and_says_what_it_takes(tmp_path: Path) -> None:
    wide = (FLOAT, ("rows", 2))
    content = network(
        [("Add", ("a", "b"), "sum"), ("Mul", ("a", "b"), "product")],
        inputs={"a": wide, "b": wide},
        outputs={"sum": wide, "product": wide},
    )
    engine = engine_of(tmp_path, content)
    signature = engine.load()
    a, b = (
        Tensor(
            name=name, datatype="FP32", shape=(1, 2), data=pack_numbers("FP32", numbers)
        )
        for name, numbers in (("a", [2.0, 3.0]), ("b", [5.0, 7.0]))
    )
    found = [
        (each.name, each.shape, unpack_numbers(each)) for each in engine.run((a, b))
    ]
    assert signature.inputs == (
        TensorType(name="a", datatype="FP32", row_shape=(2,)),
        TensorType(name="b", datatype="FP32", row_shape=(2,)),
    )
    assert [each.name for each in signature.outputs] == ["sum", "product"]
    assert found == [("sum", (1, 2), [7.0, 10.0]), ("product", (1, 2), [10.0, 21.0])]


def test_integers_keep_their_datatype(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, doubling(INT64, "rows", "length"))
    x = TensorType(name="x", datatype="INT64", row_shape=(-1,))
    assert engine.load().inputs == (x,)
    engine.warm_up(3)  # One where any length will do.
    data = pack_numbers("INT64", [2**40, -1])
    (y,) = engine.run((Tensor(name="x", datatype="INT64", shape=(1, 2), data=data),))
    assert (y.datatype, y.shape, unpack_numbers(y)) == ("INT64", (1, 2), [2**41, -2])


def test_offloaded_it_runs_nothing_and_resumed_the_same(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, DOUBLED)
    engine.load()
    assert (engine.facts().device, engine.facts().sm_count) == ("cpu", None)
    engine.offload()
    with pytest.raises(EngineFailed, match="offloaded"):
        engine.run((fp32(1.0),))
    engine.resume()
    assert unpack_numbers(engine.run((fp32(4.0),))[0]) == [8.0]


def test_a_failing_batch_is_an_error_of_that_batch(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, DOUBLED)
    engine.load()
    wrong = Tensor(
        name="x", datatype="FP64", shape=(1,), data=pack_numbers("FP64", [1.0])
    )
    with pytest.raises(EngineFailed, match="the network failed"):
        engine.run((wrong,))
    assert unpack_numbers(engine.run((fp32(1.0),))[0]) == [2.0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"no network", "net.onnx cannot be loaded"),
        (DOUBLED.replace(b"rows", b""), "net.onnx cannot be loaded"),
        (
            doubling(STRING, "rows", operator="Identity"),
            r"x is tensor\(string\), which",
        ),
        (
            doubling(FLOAT, 8),
            "x has 8 rows, always; export it with a dynamic first .*$",
        ),
        (doubling(FLOAT, 1), "give --batch-limit 1"),
        (doubling(FLOAT), "x has no dimension that could count rows"),
    ],
)
def test_networks_that_cannot_be_served_say_why(
    tmp_path: Path, content: bytes, words: str
) -> None:
    with pytest.raises(LaunchFailed, match=words):
        engine_of(tmp_path, content).load()


def test_files_elsewhere_are_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    asked = options(tmp_path, DOUBLED)
    asked.network_dir, asked.network = tmp_path / "inner", "../net.onnx"
    with pytest.raises(LaunchFailed, match="not a file in"):
        make_onnx_engine(asked)


@pytest.mark.integration
def test_a_real_worker_serves_onnx_in_batches(tmp_path: Path) -> None:
    async def check(url: str) -> None:
        async with client_of(url) as client:
            await ready(client)
            replies = await all_of([client.send(float(number)) for number in range(32)])
            described = (await client.call("GET", "/v2/models/chat")).json
            z = {"name": "z", "shape": [1], "datatype": "FP32", "data": [1]}
            wrong = {"inputs": [z]}
            refused = await client.call("POST", "/v2/models/chat/infer", wrong)
            for way in ("/offload", "/resume"):
                assert (await client.call("PUT", way)).status == 200
            assert (await client.infer(21.0)).numbers == [42.0]
        doubled = [[2.0 * number] for number in range(32)]
        assert [reply.numbers for reply in replies] == doubled
        assert described["platform"] == "onnxruntime_onnx"
        y = {"name": "y", "datatype": "FP32", "shape": [-1]}
        assert described["outputs"] == [y]
        assert refused.status == 400
        said = "the inputs are z; the network takes x FP32 [rows]"
        assert refused.json["detail"] == said

    (tmp_path / "net.onnx").write_bytes(DOUBLED)
    words = "--engine onnx --device cpu --network net.onnx --batch 8 --delay-ms 5"
    with worker(*words.split(), "--network-dir", str(tmp_path)) as started:
        run(check(started.url))
