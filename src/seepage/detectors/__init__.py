"""Client-side checks of a received model, one file each: model in, `Finding` out. None is built yet."""

from collections.abc import Callable

from seepage.types import Detector

DETECTORS: dict[str, Callable[..., Detector]] = {}

__all__ = ["DETECTORS"]
