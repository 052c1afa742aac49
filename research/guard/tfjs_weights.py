"""The layers of a tf.js model (a JSON manifest beside shards of bytes) as torch stores them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_KERNELS = ("kernel", "weights", "filter", "filters")
_BIASES = ("bias", "biases")


def tfjs_layers(manifest: Path) -> dict[str, Tensor]:
    """Convolutions are stored (height, width, in, out), depthwise ones (.., in, times), dense (in, out)."""
    loaded = json.loads(manifest.read_text(encoding="utf-8"))
    groups = loaded.get("weightsManifest", []) if isinstance(loaded, dict) else loaded
    state: dict[str, Tensor] = {}
    for group in groups:
        data = b"".join((manifest.parent / path).read_bytes() for path in group["paths"])
        place = 0
        for entry in group["weights"]:
            array, place = _array(data, place, entry)
            if array is not None:
                state.update(_renamed(entry["name"], array))
    return _with_biases(state)


def _array(data: bytes, place: int, entry: dict[str, Any]) -> tuple[np.ndarray | None, int]:
    shape = tuple(entry["shape"])
    count = int(np.prod(shape))
    if entry["dtype"] == "string":  # each with its length in four bytes
        for _ in range(count):
            place += 4 + int.from_bytes(data[place : place + 4], "little")
        return None, place
    coded = entry.get("quantization")
    kind = np.dtype(coded["dtype"] if coded else entry["dtype"])
    stored = np.frombuffer(data, kind, count, place)
    place += stored.nbytes
    if entry["dtype"] != "float32":
        return None, place
    values = stored.astype(np.float32)
    if coded and "scale" in coded:
        values = values * coded["scale"] + coded["min"]
    return values.reshape(shape), place


def _renamed(name: str, array: np.ndarray) -> dict[str, Tensor]:
    if array.ndim == 4:
        depthwise = "depthwise" in name.lower() and array.shape[3] <= 4
        order = (2, 3, 0, 1) if depthwise else (3, 2, 0, 1)
        turned = array.transpose(order)
        if depthwise:
            turned = turned.reshape(-1, 1, *turned.shape[2:])
        return {f"{name.replace('.', '_')}.weight": torch.from_numpy(turned.copy())}
    if array.ndim == 2:
        return {f"{name.replace('.', '_')}.weight": torch.from_numpy(array.T.copy())}
    return {f"{name.replace('.', '_')}.vector": torch.from_numpy(array.copy())}


def _with_biases(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A vector whose name differs in the last word only, and is as long, is the layer's bias."""
    found: dict[str, Tensor] = {}
    vectors = {name.removesuffix(".vector"): t for name, t in state.items() if name.endswith(".vector")}
    for name, tensor in state.items():
        if not name.endswith(".weight"):
            continue
        found[name] = tensor
        stem = name.removesuffix(".weight")
        for kernel in _KERNELS:
            for bias in _BIASES:
                other = vectors.get(bias.join(stem.rsplit(kernel, 1)))
                if other is not None and other.shape == tensor.shape[:1]:
                    found[f"{stem}.bias"] = other
    return found
