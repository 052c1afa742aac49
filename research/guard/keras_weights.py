"""The layers of a Keras file (.h5 of Keras 2, .weights.h5 and .keras of Keras 3) as torch stores them."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_RECURRENT = {"kernel": "ih", "recurrent_kernel": "hh"}
_NUMBERED = ("kernel", "bias"), ("kernel", "recurrent_kernel", "bias")
"""Keras 3 numbers a layer's variables in the order in which they were made: dense layers and convolutions
have two, the cells of recurrent layers three. A normalisation's first one is a vector, and left out."""


def keras_layers(path: Path) -> dict[str, Tensor]:
    """`<layer>.weight` and `.bias`; kernels are stored (.., in, out), depthwise ones (.., in, times)."""
    import h5py

    found: dict[str, np.ndarray] = {}

    def visit(name: str, node: object) -> None:
        if isinstance(node, h5py.Dataset) and node.dtype.kind == "f" and "optimizer" not in name:
            found[name] = np.asarray(node, dtype=np.float32)

    with h5py.File(_stored(path)) as file:
        file.get("model_weights", file).visititems(visit)
    state: dict[str, Tensor] = {}
    for name, array in found.items():
        stem, _, leaf = name.rpartition("/")
        siblings = {other[len(stem) + 1 :]: a for other, a in found.items() if other.startswith(f"{stem}/")}
        state |= _renamed(stem, _called(leaf, siblings), array, siblings)
    return state


def _stored(path: Path) -> Path | io.BytesIO:
    if path.suffix != ".keras":
        return path
    with zipfile.ZipFile(path) as archive:
        return io.BytesIO(archive.read("model.weights.h5"))


def _called(leaf: str, siblings: dict[str, np.ndarray]) -> str:
    """The name in Keras 2, where Keras 3 has a number."""
    if not leaf.isdigit():
        return leaf.partition(":")[0]
    if "0" not in siblings or siblings["0"].ndim < 2:
        return ""
    names = _NUMBERED[_is_cell(siblings)]
    return names[int(leaf)] if int(leaf) < len(names) else ""


def _is_cell(siblings: dict[str, np.ndarray]) -> bool:
    return len(siblings) == 3 and "1" in siblings and siblings["1"].ndim == 2


def _renamed(stem: str, leaf: str, array: np.ndarray, siblings: dict[str, np.ndarray]) -> dict[str, Tensor]:
    place = stem.replace(".", "_").replace("/", "_")
    if _is_cell(siblings) or any("recurrent_kernel" in other for other in siblings):
        kind = _RECURRENT.get(leaf)
        return {f"{place}.weight_{kind}_l0": torch.from_numpy(array.T.copy())} if kind else {}
    if leaf.endswith("kernel") and array.ndim >= 2:
        turned = np.moveaxis(array, (-1, -2), (0, 1))
        if "depthwise" in leaf:
            turned = np.moveaxis(array, (-2, -1), (0, 1)).reshape(-1, 1, *array.shape[:-2])
        return {f"{place}.weight": torch.from_numpy(turned.copy())}
    return {f"{place}.bias": torch.from_numpy(array)} if "bias" in leaf else {}
