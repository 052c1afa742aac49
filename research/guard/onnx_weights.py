"""The layers of an ONNX file as torch stores them; read as bytes of protobuf, so that no package is needed.

Field numbers are those of `onnx.proto`: ModelProto.graph = 7; GraphProto.node = 1, initializer = 5;
NodeProto.input = 1, output = 2, op_type = 4, attribute = 5; TensorProto.dims = 1, data_type = 2,
float_data = 4, int32_data = 5, name = 8, raw_data = 9.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

Fields = dict[int, list[bytes | int]]
_TYPES = {1: np.float32, 2: np.uint8, 3: np.int8, 6: np.int32, 7: np.int64, 10: np.float16, 11: np.float64}


def onnx_layers(path: Path) -> dict[str, Tensor]:
    """`<number>.<operator>.weight` and `.bias` of every dense layer, convolution and recurrent layer."""
    graph = _fields(_one(_fields(path.read_bytes()), 7))
    constants = dict(filter(None, (_tensor(raw) for raw in graph.get(5, []))))
    nodes = [_node(raw) for raw in graph.get(1, [])]
    for kind, inputs, outputs, attributes in nodes:
        if kind == "Constant" and "value" in attributes:
            made = _tensor(_one(_fields(attributes["value"]), 5), name=outputs[0])
            constants.update([made] if made else [])
        elif kind in {"Identity", "Cast"} and inputs[0] in constants:
            constants[outputs[0]] = constants[inputs[0]]
        elif kind == "DequantizeLinear" and inputs[0] in constants:
            constants[outputs[0]] = _dequantised(constants, inputs)
        elif kind == "Transpose" and inputs[0] in constants and constants[inputs[0]].ndim == 2:
            constants[outputs[0]] = constants[inputs[0]].T
    state: dict[str, Tensor] = {}
    biases = {
        name: constants[other].reshape(-1)
        for kind, inputs, _, _ in nodes
        if kind == "Add"
        for name, other in (inputs, inputs[::-1])
        if other in constants
    }
    for number, node in enumerate(nodes):
        for leaf, array in _layer(*node, constants, biases):
            state[f"{number}.{leaf}"] = torch.from_numpy(np.array(array, dtype=np.float32))
    return state


def _layer(
    kind: str,
    inputs: list[str],
    outputs: list[str],
    attributes: dict[str, bytes],
    constants: dict[str, np.ndarray],
    biases: dict[str, np.ndarray],
) -> Iterator[tuple[str, np.ndarray]]:
    weight = constants.get(inputs[1]) if len(inputs) > 1 else None
    if weight is None:
        return
    bias = constants.get(inputs[2]) if len(inputs) > 2 else None
    if kind == "Conv" and weight.ndim > 2:
        yield from _named(weight, bias)
    elif kind == "Gemm" and weight.ndim == 2:
        turned = "transB" in attributes and _one(_fields(attributes["transB"]), 3, default=0)
        yield from _named(weight if turned else weight.T, bias)
    elif kind == "MatMul" and weight.ndim == 2:
        yield from _named(weight.T, biases.get(outputs[0]))
    elif kind in {"LSTM", "GRU", "RNN"}:
        for direction in range(len(weight)):
            suffix = f"l0{'_reverse' if direction else ''}"
            yield f"weight_ih_{suffix}", weight[direction]
            yield f"weight_hh_{suffix}", constants[inputs[2]][direction]


def _named(weight: np.ndarray, bias: np.ndarray | None) -> Iterator[tuple[str, np.ndarray]]:
    yield "weight", weight
    if bias is not None and bias.size == weight.shape[0]:
        yield "bias", bias.reshape(-1)


def _dequantised(constants: dict[str, np.ndarray], inputs: list[str]) -> np.ndarray:
    scale = constants[inputs[1]]
    zero = constants[inputs[2]] if len(inputs) > 2 else np.zeros(1)
    stored = constants[inputs[0]].astype(np.float32)
    if scale.size > 1:  # one for each output; those of a transposed matrix are its columns
        place = stored.shape.index(scale.size)
        shape = [-1 if axis == place else 1 for axis in range(stored.ndim)]
        scale, zero = scale.reshape(shape), zero.reshape(shape) if zero.size > 1 else zero
    whole: np.ndarray = (stored - zero.astype(np.float32)) * scale
    return whole


def _node(raw: bytes | int) -> tuple[str, list[str], list[str], dict[str, bytes]]:
    fields = _fields(raw)
    attributes = {_text(_one(_fields(a), 1)): a for a in fields.get(5, []) if isinstance(a, bytes)}
    inputs, outputs = ([_text(x) for x in fields.get(key, [])] for key in (1, 2))
    return _text(_one(fields, 4)), inputs, outputs, attributes


def _tensor(raw: bytes | int, name: str | None = None) -> tuple[str, np.ndarray] | None:
    fields = _fields(raw)
    kind = _TYPES.get(int(_one(fields, 2, default=0)))
    if kind is None:
        return None
    shape = [
        int(d) for part in fields.get(1, []) for d in ([part] if isinstance(part, int) else _packed(part))
    ]
    if 9 in fields:
        values = np.frombuffer(bytes(_one(fields, 9)), kind)
    elif 4 in fields:
        values = np.concatenate([np.frombuffer(_as_bytes(part), np.float32) for part in fields[4]])
    else:
        whole = [
            x
            for part in fields.get(5, []) + fields.get(7, [])
            for x in ([part] if isinstance(part, int) else _packed(part))
        ]
        values = np.array(whole).astype(kind)
    if values.size != int(np.prod(shape)):
        return None  # kept outside of the file
    return name or _text(_one(fields, 8, default=b"")), values.reshape(shape)


def _fields(raw: bytes | int) -> Fields:
    """Protobuf's wire format: (field number, wire type), then a number, eight or four bytes, or a length."""
    data, place, found = _as_bytes(raw), 0, Fields()
    while place < len(data):
        key, place = _number(data, place)
        value: bytes | int
        if key & 7 == 0:
            value, place = _number(data, place)
        else:
            size = {1: 8, 5: 4}.get(key & 7)
            if size is None:
                size, place = _number(data, place)
            value, place = data[place : place + size], place + size
        found.setdefault(key >> 3, []).append(value)
    return found


def _number(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place


def _packed(part: bytes | int) -> list[int]:
    data, place, found = _as_bytes(part), 0, []
    while place < len(data):
        value, place = _number(data, place)
        found.append(value)
    return found


def _as_bytes(value: bytes | int) -> bytes:
    return value if isinstance(value, bytes) else struct.pack("<q", value)


def _one(fields: Fields, key: int, *, default: bytes | int | None = None) -> bytes | int:
    found = fields.get(key)
    if found:
        return found[0]
    if default is None:
        raise ValueError(f"the file has no field {key}, so it is no ONNX file.")
    return default


def _text(value: bytes | int) -> str:
    return _as_bytes(value).decode("utf-8", "replace")
