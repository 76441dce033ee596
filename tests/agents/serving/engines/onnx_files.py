"""Small .onnx files, encoded by hand, so that tests need no library that writes them.

Field numbers are those of onnx.proto3 (ONNX 1.x): ModelProto ir_version 1, graph 7, opset_import 8; GraphProto node 1,
name 2, input 11, output 12; NodeProto input 1, output 2, op_type 4; ValueInfoProto name 1, type 2; TypeProto
tensor_type 1 of elem_type 1 and shape 2; a shape's dim 1 of dim_value 1 or dim_param 2.
"""

FLOAT = 1
INT64 = 7
STRING = 8


def network(
    operators: list[tuple[str, tuple[str, ...], str]],
    *,
    inputs: dict[str, tuple[int, tuple[int | str, ...]]],
    outputs: dict[str, tuple[int, tuple[int | str, ...]]],
) -> bytes:
    """A network of (operator, its inputs, its output); inputs and outputs by name: element type and shape."""
    nodes = b"".join(
        _message(
            1,
            b"".join(_text(1, each) for each in taken)
            + _text(2, made)
            + _text(4, operator),
        )
        for operator, taken, made in operators
    )
    given = b"".join(_message(11, _value(name, *kind)) for name, kind in inputs.items())
    found = b"".join(
        _message(12, _value(name, *kind)) for name, kind in outputs.items()
    )
    graph = nodes + _text(2, "graph") + given + found
    return (
        _number(1, 8) + _message(7, graph) + _message(8, _text(1, "") + _number(2, 17))
    )


def _value(name: str, element: int, shape: tuple[int | str, ...]) -> bytes:
    dimensions = b"".join(
        _message(1, _number(1, each) if isinstance(each, int) else _text(2, each))
        for each in shape
    )
    tensor_type = _number(1, element) + _message(2, dimensions)
    return _text(1, name) + _message(2, _message(1, tensor_type))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode())


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])
