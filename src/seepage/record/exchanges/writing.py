"""Writing recorded exchanges: whole or not at all, for their owner alone, the same model once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from seepage.core.errors import LogError
from seepage.record.exchanges.info import INFO, MODEL, UPDATE, ExchangeInfo, ExchangeKind, Part, exchange_name
from seepage.record.files import write_atomically


class Recorder:
    """Writes exchanges into one folder. Several processes may have one for the same folder, and hand it on.

    replace: an exchange of the same round and client takes the place of what is there; otherwise it is
    refused.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = {"weight": torch.zeros(2, 2)}
    ...     update = {"weight": torch.ones(2, 2)}
    ...     path = Recorder(folder).write(model, update, kind="gradient", round=1, client=3)
    ...     path.name, sorted(p.suffix for p in path.parent.iterdir())
    ('round0001-client0003.json', ['.json', '.safetensors', '.safetensors'])
    """

    def __init__(self, folder: Path | str, *, replace: bool = False) -> None:
        self.folder = Path(folder)
        self._replace = replace
        # checksum and file of the last model; replaced as a whole, so that threads need no lock, which would
        # keep an app with a recorder in it from being sent to Ray's processes
        self._newest: tuple[str, Path] | None = None

    def write(
        self,
        model: Mapping[str, Tensor],
        update: Mapping[str, Tensor],
        *,
        kind: ExchangeKind,
        round: int,
        client: int,
        **known: Any,
    ) -> Path:
        """Write one exchange and return the path of its JSON. known: other fields of `ExchangeInfo`.

        model: the state dict that the client received. update: what it sent, by the same names.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise LogError(f"'{self.folder}' is a file: give a folder to record into, new or of a recording.")
        place = self.folder / exchange_name(round, client)
        described = place.with_name(place.name + INFO)
        if described.exists() and not self._replace:
            raise LogError(
                f"'{self.folder}' has an exchange of round {round} with client {client} already: record each "
                "run into a folder of its own."
            )
        sent, answer = _packed(model), _packed(update)
        sums: dict[Part, str] = {"model": _checksum(sent), "update": _checksum(answer)}
        info = ExchangeInfo(
            written_by=f"seepage {version('seepage')}",
            kind=kind,
            round=round,
            client=client,
            checksums=sums,
            **{"dtype": dtype_of(update), **known},
        )
        described.unlink(missing_ok=True)  # it would not fit what comes
        self._write_model(place.with_name(place.name + MODEL), sent, sums["model"])
        write_atomically(place.with_name(place.name + UPDATE), answer)
        write_atomically(described, info.model_dump_json(indent=1, exclude_none=True).encode())  # last: whole
        return described

    def _write_model(self, path: Path, content: bytes, checksum: str) -> None:
        """Clients of a round get the same model: a hard link, where the file system has them."""
        known = self._newest
        if known is not None and known[0] == checksum and known[1] != path:
            try:
                path.unlink(missing_ok=True)
                os.link(known[1], path)
                return
            except OSError:
                pass  # no hard links here, or the other file is gone
        write_atomically(path, content)
        self._newest = (checksum, path)


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def dtype_of(tensors: Mapping[str, Tensor]) -> str:
    """The type of the floating numbers; the narrowest, where there are several.

    >>> dtype_of({"a": torch.zeros(1), "b": torch.zeros(1, dtype=torch.float16), "c": torch.zeros(1).long()})
    'float16'
    """
    found = [t.dtype for t in tensors.values() if t.is_floating_point()]
    narrowest = min(found, key=lambda dtype: torch.finfo(dtype).bits, default=torch.float32)
    return str(narrowest).removeprefix("torch.")


def _packed(tensors: Mapping[str, Tensor]) -> bytes:
    """Copies are made of nothing but what shares its memory, which safetensors refuses."""
    if not tensors:
        raise LogError("there is no tensor to record: give what the client received and what it sent.")
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    seen: set[int] = set()
    for name, tensor in whole.items():
        address = tensor.untyped_storage().data_ptr()
        if address in seen or tensor.untyped_storage().nbytes() != tensor.nbytes:
            whole[name] = tensor.clone()
        seen.add(address)
    return bytes(save(whole))
