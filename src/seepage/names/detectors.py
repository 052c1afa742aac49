"""The detectors, from the most telling sign to the least. Their docstrings describe them."""

from __future__ import annotations

from seepage.core.registry import Entry

GROUP = "seepage.detectors"
"""Entry points under which a package offers more."""


def _detector(where: str, looks_at: str) -> Entry:
    return Entry(where=where, facts={"looks_at": looks_at})


DETECTORS: dict[str, Entry] = {
    "pass_through": _detector("seepage.guardian.detectors.pass_through:pass_through", "weights"),
    "trap_rows": _detector("seepage.guardian.detectors.trap_rows:trap_rows", "weights"),
    "row_balance": _detector("seepage.guardian.detectors.row_balance:row_balance", "weights"),
    "identical_rows": _detector("seepage.guardian.detectors.identical_rows:identical_rows", "weights"),
    "quantile_biases": _detector("seepage.guardian.detectors.quantile_biases:quantile_biases", "weights"),
    "silenced_rows": _detector("seepage.guardian.detectors.silenced_rows:silenced_rows", "weights"),
    "lone_class_row": _detector("seepage.guardian.detectors.fishing_head:lone_class_row", "weights"),
    "class_bias": _detector("seepage.guardian.detectors.fishing_head:class_bias", "weights"),
    "sign_distribution": _detector(
        "seepage.guardian.detectors.sign_distribution:sign_distribution", "weights"
    ),
    "lone_neurons": _detector("seepage.guardian.detectors.lone_neurons:lone_neurons", "behaviour"),
    "rare_neurons": _detector("seepage.guardian.detectors.rare_neurons:rare_neurons", "behaviour"),
    "gradient_share": _detector("seepage.guardian.detectors.gradient_share:gradient_share", "behaviour"),
    "transmission": _detector("seepage.guardian.detectors.transmission:transmission", "behaviour"),
    "round_jump": _detector("seepage.guardian.detectors.round_jump:round_jump", "rounds"),
    "fresh_start": _detector("seepage.guardian.detectors.fresh_start:fresh_start", "rounds"),
    "step_history": _detector("seepage.guardian.detectors.step_history:step_history", "rounds"),
    "loss_jump": _detector("seepage.guardian.detectors.loss_jump:loss_jump", "rounds"),
}
