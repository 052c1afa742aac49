"""Recorded exchanges from what people have: .npz, .pt, .safetensors, a Flower ArrayRecord, an NVFlare DXO."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seepage.core.errors import LogError, SeepageError, in_words
from seepage.core.user_code import UNREADABLE
from seepage.models.weights import TORCH_SUFFIXES, read_state_dict
from seepage.record.exchanges.info import ExchangeKind
from seepage.record.exchanges.writing import Recorder

DXO_SUFFIXES = (".dxo", ".fobs")
_MOST_BYTES = 16 * 2**30
"""More than an .npz may unpack to: a few kilobytes can claim petabytes."""
_POSITIONS = re.compile(r"(?:arr_)?(\d{1,6})")
"""How numpy.savez and Flower name arrays that were given without names."""


def import_update(
    update: Path | str | Mapping[str, Any] | Any,
    *,
    sent: Path | str | Mapping[str, Any] | Any,
    into: Path | str | Recorder,
    kind: ExchangeKind | None = None,
    round: int = 1,
    client: int = 0,
    names: Sequence[str] | None = None,
    **known: Any,
) -> Path:
    """Make a recorded exchange of an update, and return the path of its JSON.

    update, sent: what the client sent and the model it had received; each a file, tensors or arrays by name,
    a Flower ArrayRecord or an NVFlare DXO.
    kind: what the update is; a DXO says it itself. names: the model's, in the order of its state dict, for
    files that have none. known: other fields of `ExchangeInfo`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/round-1.npz", np.ones((1, 2)), np.ones(1))  # as a Flower strategy may
    ...     model = torch.nn.Linear(2, 1)
    ...     made = import_update(f"{folder}/round-1.npz", sent=model.state_dict(), kind="weights",
    ...                          into=f"{folder}/recorded", examples=8)
    ...     made.name
    'round0001-client0000.json'
    """
    model, _ = _tensors(sent)
    answer, facts = _tensors(update)
    if _nameless(model):
        model = _in_order(model, names, "the model that was sent")
    if _nameless(answer):
        ordered = not str(sent).endswith(".safetensors") if isinstance(sent, str | Path) else True
        answer = _in_order(answer, list(model) if ordered else names, "the update")
    facts = {**facts, **known, **({} if kind is None else {"kind": kind})}
    if "kind" not in facts:
        raise LogError(
            "the update does not say what it is: give its kind, that is gradient, delta (new weights minus "
            "received ones) or weights (the new ones)."
        )
    recorder = into if isinstance(into, Recorder) else Recorder(into)
    return recorder.write(model, answer, round=round, client=client, **facts)


def read_tensors(path: Path | str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file by name, and what it says about them. Nothing in it is executed."""
    file = Path(path)
    if not file.is_file():
        raise LogError(f"there is no file at '{file}': check the path.")
    suffix = file.suffix.lower()
    if suffix == ".npz":
        return _read_npz(file), {}
    if suffix in DXO_SUFFIXES:
        return _read_dxo(file)
    if suffix in (".safetensors", *TORCH_SUFFIXES):
        return read_state_dict(file), {}
    raise LogError(
        f"'{file.name}' is of a kind that is not read: give .npz, .safetensors, a state dict saved with "
        f"torch.save ({', '.join(TORCH_SUFFIXES)}) or an NVFlare DXO ({', '.join(DXO_SUFFIXES)})."
    )


def from_array_record(record: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a Flower `ArrayRecord`, in the types that they travelled in."""
    try:
        return {str(name): _tensor(array.numpy(), str(name)) for name, array in record.items()}
    except (TypeError, ValueError, EOFError) as error:
        raise LogError(f"the ArrayRecord cannot be read ({in_words(error)[:120]}) Record it again.") from None


def from_dxo(dxo: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of an NVFlare `DXO`, and what it says of itself: kind, filters it has passed, steps."""
    kinds: dict[str, ExchangeKind] = {"WEIGHTS": "weights", "WEIGHT_DIFF": "delta"}
    said = str(getattr(dxo.data_kind, "value", dxo.data_kind))
    if said not in kinds:
        raise LogError(f"the DXO holds {said[:40]}, not weights: give one of kind WEIGHTS or WEIGHT_DIFF.")
    facts: dict[str, Any] = {"kind": kinds[said]}
    if facts["kind"] == "delta":
        facts["buffers"] = "differences"
    if passed := dxo.get_filter_history():
        facts["filters"] = tuple(str(name)[:200] for name in passed)
    steps = dxo.get_meta_prop("NUM_STEPS_CURRENT_ROUND")
    if isinstance(steps, int) and steps > 0:
        facts["local"] = {"steps": steps}
    return {str(name): _tensor(value, str(name)) for name, value in dxo.data.items()}, facts


def _tensors(given: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if isinstance(given, str | Path):
        return read_tensors(given)
    if hasattr(given, "data_kind"):
        return from_dxo(given)
    if isinstance(given, Mapping):
        if all(hasattr(value, "stype") for value in given.values()):
            return from_array_record(given), {}
        return {str(name): _tensor(value, str(name)) for name, value in given.items()}, {}
    raise LogError(
        f"a {type(given).__name__} holds no update: give a file, tensors by name, an ArrayRecord or a DXO."
    )


def _read_npz(file: Path) -> dict[str, Tensor]:
    try:
        with zipfile.ZipFile(file) as archive:
            total = sum(member.file_size for member in archive.infolist())
        if total > _MOST_BYTES:
            raise LogError(f"'{file.name}' unpacks to {total / 2**30:.0f} GiB: that is no update.")
        with np.load(file, allow_pickle=False) as arrays:
            return {name: _tensor(arrays[name], name) for name in arrays.files}
    except UNREADABLE as error:
        raise LogError(
            f"'{file.name}' cannot be read as .npz ({in_words(error)[:120]}): save it again with numpy.savez "
            "and plain numeric arrays."
        ) from None


def _read_dxo(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        from nvflare.apis.dxo import DXO, from_file
        from nvflare.app_common.decomposers import numpy_decomposers
    except ImportError:
        raise LogError(
            f"'{file.name}' is NVFlare's, which is not installed here: run pip install 'seepage[nvflare]'."
        ) from None
    try:
        numpy_decomposers.register()  # arrays by np.load without pickles; other types NVFlare refuses
        loaded = from_file(str(file))
        if not isinstance(loaded, DXO):
            raise ValueError(f"it holds a {type(loaded).__name__}")
        return from_dxo(loaded)
    except SeepageError:
        raise
    except Exception as error:  # msgpack and NVFlare's decomposers raise whatever a damaged file leads to
        raise LogError(
            f"'{file.name}' is no readable DXO ({in_words(error)[:120]}): write it again with DXO.to_file."
        ) from None


def _tensor(value: Any, name: str) -> Tensor:
    """Shares memory with an array where it can."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, int | float):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub":
        what = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise LogError(
            f"'{name[:80]}' is a {what}, not an array of numbers: export the weights unencrypted and as "
            "plain arrays."
        )
    return torch.from_numpy(value if value.flags.writeable else value.copy())


def _nameless(tensors: Mapping[str, Tensor]) -> bool:
    return bool(tensors) and all(_POSITIONS.fullmatch(name) for name in tensors)


def _in_order(tensors: Mapping[str, Tensor], names: Sequence[str] | None, what: str) -> dict[str, Tensor]:
    """Arrays without names, in the order of the model's state dict."""
    if names is None:
        raise LogError(
            f"{what} has arrays without names: give the model too, whose names they get in order, "
            "or save them with their names."
        )
    places = {int(found[1]): t for n, t in tensors.items() if (found := _POSITIONS.fullmatch(n))}
    if sorted(places) != list(range(len(names))):
        raise LogError(
            f"{what} has {len(places)} arrays without names and the model has {len(names)} tensors: save "
            "them with their names."
        )
    return {name: places[number] for number, name in enumerate(names)}
