"""Datasets that come inside scikit-image and scikit-learn: nothing is downloaded.

The files are read straight from the installed packages. scikit-image's own functions would, where `pooch`
is installed, ask the network for a file whose checksum has changed.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata, resources
from typing import Any

import numpy as np
from PIL import Image

from seepage.core.errors import DataError, SpecError
from seepage.data.arrays import from_arrays
from seepage.data.dataset import Dataset
from seepage.data.pictures import UNREADABLE_PICTURE

_PHOTOGRAPHS = {
    "astronaut": ("skimage.data", "astronaut.png"),
    "cat": ("skimage.data", "chelsea.png"),
    "coffee": ("skimage.data", "coffee.png"),
    "rocket": ("skimage.data", "rocket.jpg"),
    "motorcycle": ("skimage.data", "motorcycle_left.png"),
    "retina": ("skimage.data", "retina.jpg"),
    "temple": ("sklearn.datasets.images", "china.jpg"),
    "flower": ("sklearn.datasets.images", "flower.jpg"),
}
_CROPS_PER_SHORT_SIDE = 4
_FLAT = 0.05  # standard deviation under which a crop is open sky or black border and shows nothing
_SMALLEST, _LARGEST = 8, 300  # 300: the short side of the smallest photograph


def faces() -> Dataset:
    """200 grey 25x25 pictures from LFW: label 1 for the 100 faces, 0 for the 100 other patches.

    >>> tuple(faces().inputs.shape)
    (200, 1, 25, 25)
    """
    path = resources.files("skimage.data") / "lfw_subset.npy"
    try:
        with path.open("rb") as file:
            values = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _not_bundled("scikit-image", "lfw_subset.npy") from error
    labels = np.r_[np.ones(100, dtype=np.int64), np.zeros(100, dtype=np.int64)]
    return from_arrays(
        np.clip(values, 0.0, 1.0).astype(np.float32),  # float error leaves a few values at 1 + 1e-16
        labels,
        name="faces",
        source=_packaged("scikit-image", "lfw_subset"),
        class_names=("no face", "face"),
    )


def photos(*, size: int = 32) -> Dataset:
    """Square colour crops from eight photographs; the label says which photograph.

    Each photograph is shrunk until four crops fit along its short side (fewer where it is too small for
    four of them), then cut on a centred grid without overlap. Crops of open sky or black border are left
    out. The order is fixed.

    >>> data = photos(size=32)
    >>> tuple(data.inputs.shape[1:]), data.spec.class_names[:2]
    ((3, 32, 32), ('astronaut', 'cat'))
    """
    if isinstance(size, bool) or not isinstance(size, int) or not _SMALLEST <= size <= _LARGEST:
        raise SpecError(f"photos: size is {size!r}; give a whole number from {_SMALLEST} to {_LARGEST}.")
    crops: list[np.ndarray[Any, Any]] = []
    labels: list[int] = []
    for label, (package, file) in enumerate(_PHOTOGRAPHS.values()):
        kept = [
            c for c in _grid(_photograph(package, file), size) if c.std(axis=(0, 1)).mean() >= _FLAT * 255
        ]
        crops += kept
        labels += [label] * len(kept)
    return from_arrays(
        np.stack(crops),
        labels,
        name="photos",
        source=f"{_packaged('scikit-image', 'photographs')}, {_packaged('scikit-learn', 'china, flower')}",
        layout="HWC",
        class_names=tuple(_PHOTOGRAPHS),
    )


def digits() -> Dataset:
    """1797 handwritten digits, grey 8x8, scaled from 0..16 to [0, 1].

    >>> tuple(digits().inputs.shape)
    (1797, 1, 8, 8)
    """
    from sklearn.datasets import load_digits

    bundle = load_digits()
    return from_arrays(
        (bundle.images / 16).astype(np.float32),
        bundle.target,
        name="digits",
        source=_packaged("scikit-learn", "load_digits"),
        class_names=tuple(str(i) for i in range(10)),
    )


def breast_cancer() -> Dataset:
    """569 tumours in 30 columns, benign or malignant; the model is fed standardised columns.

    Raw columns differ in range by a factor of 100,000: areas reach 4254, fractal dimensions stay below 0.1.

    >>> data = breast_cancer()
    >>> data.spec.column_names[0], data.spec.value_range
    ('mean radius', None)
    """
    from sklearn.datasets import load_breast_cancer

    bundle = load_breast_cancer()
    dataset = from_arrays(
        bundle.data,
        bundle.target,
        name="breast_cancer",
        source=_packaged("scikit-learn", "load_breast_cancer"),
        class_names=tuple(str(n) for n in bundle.target_names),
        column_names=tuple(str(n) for n in bundle.feature_names),
    )
    return replace(dataset, standardise=True)


def _photograph(package: str, file: str) -> Image.Image:
    try:
        with (resources.files(package) / file).open("rb") as handle:
            return Image.open(handle).convert("RGB")
    except UNREADABLE_PICTURE as error:
        raise _not_bundled(package.split(".", maxsplit=1)[0], file) from error


def _grid(photograph: Image.Image, size: int) -> list[np.ndarray[Any, Any]]:
    """Crops (size, size, 3) uint8, row by row."""
    short = min(photograph.size)
    scale = min(_CROPS_PER_SHORT_SIDE, short // size) * size / short
    width, height = (round(side * scale) for side in photograph.size)
    pixels = np.asarray(photograph.resize((width, height), Image.Resampling.BICUBIC))  # (H, W, 3)
    top, left = (height % size) // 2, (width % size) // 2
    return [
        pixels[y : y + size, x : x + size]
        for y in range(top, height - size + 1, size)
        for x in range(left, width - size + 1, size)
    ]


def _packaged(distribution: str, what: str) -> str:
    release = ".".join(metadata.version(distribution).split(".")[:2])
    return f"{distribution} {release} ({what})"


def _not_bundled(package: str, file: str) -> DataError:
    return DataError(
        f"the installed {package} lacks a readable {file}; reinstall it with "
        "pip install --force-reinstall scikit-image scikit-learn."
    )
