"""Requests and answers on the wire, and tensors as bytes."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.serving.engines.errors import BadRequest
from agents.serving.engines.tensors import (
    TYPE_CODES,
    Tensor,
    join,
    pack_numbers,
    split,
    unpack_numbers,
)
from agents.serving.wire import InferRequest, decode_request, encode_answer

RANGES = {
    "UINT8": (0, 2**8 - 1),
    "UINT16": (0, 2**16 - 1),
    "UINT32": (0, 2**32 - 1),
    "UINT64": (0, 2**64 - 1),
    "INT8": (-(2**7), 2**7 - 1),
    "INT16": (-(2**15), 2**15 - 1),
    "INT32": (-(2**31), 2**31 - 1),
    "INT64": (-(2**63), 2**63 - 1),
}
WIDTHS = {"FP16": 16, "FP32": 32, "FP64": 64}


def numbers_of(datatype: str) -> st.SearchStrategy[float]:
    if datatype == "BOOL":
        return st.booleans()
    if datatype in WIDTHS:
        return st.floats(width=WIDTHS[datatype], allow_nan=False, allow_infinity=False)  # type: ignore[arg-type]
    return st.integers(*RANGES[datatype])


@st.composite
def tensors(draw: st.DrawFn) -> tuple[Tensor, list[float]]:
    """A tensor and its numbers."""
    datatype = draw(st.sampled_from(sorted(TYPE_CODES)))
    shape = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=4)))
    count = math.prod(shape)
    numbers = draw(st.lists(numbers_of(datatype), min_size=count, max_size=count))
    return Tensor(
        name="x", datatype=datatype, shape=shape, data=pack_numbers(datatype, numbers)
    ), numbers


def nested(numbers: list[float], shape: tuple[int, ...]) -> object:
    if len(shape) == 1:
        return numbers
    step = len(numbers) // shape[0]
    return [
        nested(numbers[at : at + step], shape[1:])
        for at in range(0, len(numbers), step)
    ]


def request(
    data: object,
    *,
    shape: tuple[int, ...] = (2,),
    datatype: str = "FP32",
    **more: object,
) -> bytes:
    each = {"name": "x", "shape": shape, "datatype": datatype, "data": data}
    return msgspec.json.encode({"inputs": [each], **more})


@given(tensors())
def test_flat_nested_and_binary_data_are_alike(
    drawn: tuple[Tensor, list[float]],
) -> None:
    tensor, numbers = drawn
    flat = decode_request(
        request(numbers, shape=tensor.shape, datatype=tensor.datatype)
    )
    deep = decode_request(
        request(
            nested(numbers, tensor.shape), shape=tensor.shape, datatype=tensor.datatype
        )
    )
    asked = {"name": "x", "shape": tensor.shape, "datatype": tensor.datatype}
    head = msgspec.json.encode(
        {"inputs": [{**asked, "parameters": {"binary_data_size": len(tensor.data)}}]}
    )
    binary = decode_request(head + tensor.data, str(len(head)))
    assert flat.inputs == deep.inputs == binary.inputs == (tensor,)


@given(tensors())
def test_an_answer_says_the_numbers_exactly(drawn: tuple[Tensor, list[float]]) -> None:
    tensor, numbers = drawn
    text, json_length = encode_answer(
        "chat", InferRequest(inputs=(tensor,)), (tensor,), {}
    )
    (output,) = msgspec.json.decode(text)["outputs"]
    assert output["data"] == numbers
    assert output["shape"] == list(tensor.shape)
    assert json_length is None


@given(tensors(), st.data())
def test_what_is_joined_can_be_split_again(
    drawn: tuple[Tensor, list[float]], data: st.DataObject
) -> None:
    tensor, numbers = drawn
    copies = data.draw(st.integers(1, 4))
    joined = join([(tensor,)] * copies)
    assert joined[0].rows == copies * tensor.rows
    assert unpack_numbers(joined[0]) == numbers * copies
    assert split(joined, [tensor.rows] * copies) == ((tensor,),) * copies


def test_requests_of_unequal_rows_get_their_own_back() -> None:
    one = Tensor(name="x", datatype="INT8", shape=(1, 2), data=b"\x01\x02")
    two = Tensor(name="x", datatype="INT8", shape=(2, 2), data=b"\x03\x04\x05\x06")
    joined = join([(one,), (two,)])
    assert (joined[0].shape, joined[0].data) == ((3, 2), b"\x01\x02\x03\x04\x05\x06")
    assert split(joined, [1, 2]) == ((one,), (two,))


def test_integers_beyond_doubles_stay_exact() -> None:
    (tensor,) = decode_request(request([2**53 + 1, -(2**63)], datatype="INT64")).inputs
    assert unpack_numbers(tensor) == [2**53 + 1, -(2**63)]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (request([1, 2, 3]), "x has 12 bytes, shape [2] of FP32 needs 8"),
        (request([[1, 2], [3]], shape=(2, 2)), "not have the shape [2, 2]"),
        (request([[1, 2, 3, 4]], shape=(2, 2)), "not have the shape [2, 2]"),
        (request([[1], 2], shape=(2, 1)), "$[1]"),
        (request(["one", "two"]), "Expected `float`, got `str`"),
        (request([None, 1]), "Expected `float`, got `null`"),
        (request([1.5, 2], datatype="INT32"), "Expected `int`, got `float`"),
        (request([1, 2], datatype="BOOL"), "Expected `bool`, got `int`"),
        (request([256, 0], datatype="UINT8"), "input x: the data is not UINT8"),
        (request([-1, 0], datatype="UINT64"), "input x: the data is not UINT64"),
        (request([70000.0, 0], datatype="FP16"), "input x: the data is not FP16"),
        (request(["a", "b"], datatype="BYTES"), "datatype 'BYTES' is not served"),
        (request(7), "Expected `array`, got `int`"),
        (request([], shape=(0,)), "$.inputs[0].shape"),
        (request([1], shape=()), "$.inputs[0].shape"),
        (request([1], shape=(2**31, 2**31)), "input x has 4 bytes"),
        (
            msgspec.json.encode(
                {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32"}]}
            ),
            "the data is not FP32",
        ),
        (msgspec.json.encode({"id": "1"}), "missing required field `inputs`"),
        (b'{"inputs":[' + b"[" * 5000, "not a v2 inference request"),
    ],
)
def test_bad_requests_say_what_is_wrong(body: bytes, words: str) -> None:
    with pytest.raises(BadRequest) as error:
        decode_request(body)
    assert words in str(error.value)


def two_inputs(first: str, second: str, *, rows: int = 1) -> bytes:
    inputs = [
        {"name": first, "shape": [1], "datatype": "UINT8", "data": [1]},
        {"name": second, "shape": [rows], "datatype": "UINT8", "data": [2] * rows},
    ]
    return msgspec.json.encode({"inputs": inputs})


def test_inputs_have_names_of_their_own_and_as_many_rows() -> None:
    found = decode_request(two_inputs("a", "b")).inputs
    assert [each.name for each in found] == ["a", "b"]
    with pytest.raises(BadRequest, match="different names, but these are a, a"):
        decode_request(two_inputs("a", "a"))
    with pytest.raises(BadRequest, match=r"the same in all inputs, but is \[1, 2\]"):
        decode_request(two_inputs("a", "b", rows=2))


HEADER = "Inference-Header-Content-Length"


@pytest.mark.parametrize(
    ("size", "data", "length", "words"),
    [
        (8, b"12345678", "-1", f"{HEADER} '-1'"),
        (8, b"12345678", "99999", f"{HEADER} '99999'"),
        (8, b"12345678", "²", HEADER),
        (8, b"1234", None, "input x has 4 bytes"),
        (4, b"12345678", None, "input x has 4 bytes"),
        (8, b"123456789", None, "9 bytes follow the JSON, the inputs name 8"),
        (-8, b"12345678", None, "binary_data_size -8"),
        (True, b"1", None, "binary_data_size True"),
        ("8", b"12345678", None, "binary_data_size '8'"),
    ],
)
def test_bad_binary_requests_say_what_is_wrong(
    size: object, data: bytes, length: str | None, words: str
) -> None:
    each = {"name": "x", "shape": [2], "datatype": "FP32"}
    binary = {**each, "parameters": {"binary_data_size": size}}
    head = msgspec.json.encode({"inputs": [binary]})
    with pytest.raises(BadRequest) as error:
        decode_request(head + data, length or str(len(head)))
    assert words in str(error.value)


def test_outputs_are_chosen_by_name_and_binary_one_by_one() -> None:
    wanted = [{"name": "b", "parameters": {"binary_data": True}}, {"name": "c"}]
    asked = decode_request(request([1, 2], outputs=wanted, id="9"))
    outputs = tuple(
        Tensor(name=name, datatype="UINT8", shape=(2,), data=b"\x05\x06")
        for name in "abc"
    )
    text, json_length = encode_answer("chat", asked, outputs, {"batch": 2})
    assert json_length is not None
    answer = msgspec.json.decode(text[:json_length])
    assert text[json_length:] == b"\x05\x06"
    assert (answer["id"], answer["parameters"]) == ("9", {"batch": 2})
    found = [(each["name"], each.get("data")) for each in answer["outputs"]]
    assert found == [("b", None), ("c", [5, 6])]
    asked = decode_request(request([1, 2], outputs=[{"name": "z"}]))
    with pytest.raises(BadRequest, match="no output z; there are x"):
        encode_answer("chat", asked, asked.inputs, {})
