"""Client-side checks of a received model, one idea a file: model in, `Finding` out.

The first group looks at weights alone, the second runs the model on harmless inputs (needs `spec`), the third
compares with earlier rounds (needs `previous` or `history`). `seepage.guard` combines them.
"""

from collections.abc import Callable

from seepage.core.registry import Registry
from seepage.core.types import Detector
from seepage.guardian.detectors.calibrated import calibration
from seepage.guardian.detectors.layers import as_module
from seepage.names import detectors as names

__all__ = ["DETECTORS", "as_module", "calibration", "looking_at"]

DETECTORS: Registry[Callable[..., Detector]] = Registry(
    "detector", group=names.GROUP, entries=names.DETECTORS, function=True
)


def looking_at(what: str) -> tuple[str, ...]:
    """Our own detectors of one group: "weights", "behaviour" or "rounds".

    >>> looking_at("rounds")
    ('round_jump', 'fresh_start', 'step_history', 'loss_jump')
    """
    return tuple(name for name, entry in names.DETECTORS.items() if entry.facts["looks_at"] == what)
