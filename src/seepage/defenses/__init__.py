"""Defenses, one file each: wrappers round a client's local step. The first one listed is outermost."""

from collections.abc import Callable

from seepage.defenses.clipping import clipping
from seepage.defenses.gaussian_noise import gaussian_noise
from seepage.types import Defense

DEFENSES: dict[str, Callable[..., Defense]] = {
    "clipping": clipping,
    "gaussian_noise": gaussian_noise,
}

__all__ = ["DEFENSES"]
