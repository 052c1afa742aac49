"""Client-side checks of a received model, one idea a file: model in, `Finding` out.

The first group looks at weights alone, the second runs the model on harmless inputs (needs `spec`), the third
compares with earlier rounds (needs `previous` or `history`). `seepage.guard` combines them.
"""

from collections.abc import Callable

from seepage.detectors.calibrated import calibration
from seepage.detectors.fishing_head import class_bias, lone_class_row
from seepage.detectors.gradient_share import gradient_share
from seepage.detectors.identical_rows import identical_rows
from seepage.detectors.layers import as_module
from seepage.detectors.lone_neurons import lone_neurons
from seepage.detectors.loss_jump import loss_jump
from seepage.detectors.pass_through import pass_through
from seepage.detectors.quantile_biases import quantile_biases
from seepage.detectors.round_jump import round_jump
from seepage.detectors.row_balance import row_balance
from seepage.detectors.sign_distribution import sign_distribution
from seepage.detectors.silenced_rows import silenced_rows
from seepage.detectors.step_history import step_history
from seepage.detectors.transmission import transmission
from seepage.detectors.trap_rows import trap_rows
from seepage.types import Detector

WEIGHT_DETECTORS: dict[str, Callable[..., Detector]] = {
    "pass_through": pass_through,
    "trap_rows": trap_rows,
    "row_balance": row_balance,
    "identical_rows": identical_rows,
    "quantile_biases": quantile_biases,
    "silenced_rows": silenced_rows,
    "lone_class_row": lone_class_row,
    "class_bias": class_bias,
    "sign_distribution": sign_distribution,
}

BEHAVIOUR_DETECTORS: dict[str, Callable[..., Detector]] = {
    "lone_neurons": lone_neurons,
    "gradient_share": gradient_share,
    "transmission": transmission,
}

ROUND_DETECTORS: dict[str, Callable[..., Detector]] = {
    "round_jump": round_jump,
    "step_history": step_history,
    "loss_jump": loss_jump,
}

DETECTORS: dict[str, Callable[..., Detector]] = {
    **WEIGHT_DETECTORS,
    **BEHAVIOUR_DETECTORS,
    **ROUND_DETECTORS,
}

__all__ = [
    "BEHAVIOUR_DETECTORS",
    "DETECTORS",
    "ROUND_DETECTORS",
    "WEIGHT_DETECTORS",
    "as_module",
    "calibration",
]
