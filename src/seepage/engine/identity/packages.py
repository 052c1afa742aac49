"""Which packages computed a result."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import metadata

PACKAGES = (
    "seepage",
    "torch",
    "numpy",
    "scipy",
    "torchmetrics",
    "scikit-image",
    "scikit-learn",
    "safetensors",
)
"""Of every result, whatever it imports besides."""
EXTRAS = ("kornia", "pytorch-wavelets", "PyWavelets", "dp-accounting")
"""What is measured depends on whether they are there; they are not imported to find out."""

ABSENT = "not installed"
"""Also a version: what can be measured may depend on it."""


def version(package: str) -> str:
    """The version of an installed package, by its name on the index or the name it is imported by.

    >>> version("no_such_package")
    'not installed'
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        pass
    if names := _distributions().get(package):
        return metadata.version(names[0])
    return str(getattr(sys.modules.get(package), "__version__", ABSENT))


def versions(imported: Iterable[str] = ()) -> dict[str, str]:
    """Of Python, of the packages above and of those that are imported besides.

    >>> sorted(versions())[:2], versions(["no_such_package"])["no_such_package"]
    (['PyWavelets', 'Python'], 'not installed')
    """
    names = sorted({*PACKAGES, *EXTRAS, *imported})
    return {"Python": platform.python_version(), **{name: version(name) for name in names}}


@lru_cache(maxsize=1)
def _distributions() -> Mapping[str, list[str]]:
    """Reads the records of everything that is installed: once."""
    return metadata.packages_distributions()
