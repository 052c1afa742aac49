"""Reads the tensors of a TorchScript archive without running anything that is in it.

`torch.jit.load` is no option for a file from somebody else: it runs the archive's `__setstate__`, from
where `torch.save` can write to any path. The archive is a zip with a pickle of nested attributes beside
the raw tensors; the pickle is read here with every class replaced by an inert record.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

DTYPES: dict[str, torch.dtype] = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


class _Record:
    """Stands for any object of the archive; keeps its attributes and does nothing."""

    attributes: dict[str, Any]

    def __new__(cls) -> _Record:  # pickle makes objects without calling __init__
        record = super().__new__(cls)
        record.attributes = {}
        return record

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, dict):  # the class has a __setstate__ of its own, which is never run
            raise pickle.UnpicklingError("an object restores itself by code of its own")
        self.attributes = state


class _InertUnpickler(pickle.Unpickler):
    """Knows tensors, containers and records. Any other name in the pickle is an error."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(io.BytesIO(archive.read(f"{root}/data.pkl")))
        self.archive = archive
        self.root = root

    def find_class(self, module: str, name: str) -> Any:
        if module == "__torch__" or module.startswith("__torch__."):
            return _Record
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        known: dict[tuple[str, str], Callable[..., Any]] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): self._tensor,
        }
        if (module, name) in known:
            return known[module, name]
        if module == "torch.jit._pickle":  # typed lists and dicts: the content is all that matters here
            return self._content
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> Tensor:
        _, dtype, key, _, numel = pid  # ("storage", type, file, device, number of elements)
        data = self.archive.read(f"{self.root}/data/{key}")
        return (
            torch.frombuffer(bytearray(data), dtype=dtype, count=numel)
            if numel
            else torch.empty(0, dtype=dtype)
        )

    def _tensor(self, storage: Tensor, offset: int, size: Any, stride: Any, *_: object) -> Tensor:
        return torch.as_strided(storage, size, stride, offset)

    def _content(self, content: object, *_: object) -> object:
        return content


def is_torchscript(path: Path) -> bool:
    """Whether this is a TorchScript archive rather than a saved state dict."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def read_torchscript(path: Path) -> dict[str, Tensor]:
    """Every tensor of the archive by its dotted name, as the module's `state_dict()` would give them.

    Raises pickle.UnpicklingError, zipfile.BadZipFile and the like for what it cannot or will not read.
    """
    with zipfile.ZipFile(path) as archive:
        root = next(name for name in archive.namelist() if name.endswith("/data.pkl")).removesuffix(
            "/data.pkl"
        )
        top = _InertUnpickler(archive, root).load()
    if not isinstance(top, _Record):
        raise pickle.UnpicklingError("its top object is no module")
    return dict(_tensors(top, prefix=""))


def _tensors(record: _Record, prefix: str) -> list[tuple[str, Tensor]]:
    found: list[tuple[str, Tensor]] = []
    for name, value in record.attributes.items():
        if isinstance(value, Tensor):
            found.append((prefix + name, value))
        elif isinstance(value, _Record):
            found.extend(_tensors(value, prefix=f"{prefix}{name}."))
    return found
