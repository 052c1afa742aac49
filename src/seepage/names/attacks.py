"""The attacks, in the order in which an audit tries them. Their docstrings describe them."""

from __future__ import annotations

from seepage.core.registry import Entry


def _attack(where: str, *requires: str) -> Entry:
    """requires: what the threat model must grant, with default settings."""
    return Entry(where=where, facts={"requires": requires})


_FISHES = ("batch_size", "craft_weights", "several_rounds")

GROUP = "seepage.attacks"
"""Entry points under which a package offers more."""

ATTACKS: dict[str, Entry] = {
    "prior_only": _attack("seepage.attacks.prior_only:prior_only"),
    "analytic_extraction": _attack("seepage.attacks.reading.analytic_extraction:analytic_extraction"),
    "exact_extraction": _attack("seepage.attacks.reading.exact_extraction:exact_extraction"),
    "deep_leakage": _attack("seepage.attacks.inversion.deep_leakage:deep_leakage"),
    "idlg": _attack("seepage.attacks.inversion.deep_leakage:idlg"),
    "inverting_gradients": _attack("seepage.attacks.inversion.inverting_gradients:inverting_gradients"),
    "feature_inversion": _attack("seepage.attacks.features.feature_inversion:feature_inversion"),
    "see_through_gradients": _attack("seepage.attacks.inversion.see_through_gradients:see_through_gradients"),
    "tag": _attack("seepage.attacks.inversion.tag:tag"),
    "lamp": _attack("seepage.attacks.inversion.lamp:lamp"),
    "recursive_inversion": _attack("seepage.attacks.closed_form.recursive_inversion:recursive_inversion"),
    "april": _attack("seepage.attacks.closed_form.april:april"),
    "patch_embedding": _attack("seepage.attacks.closed_form.patch_embedding:patch_embedding"),
    "embedding_rows": _attack("seepage.attacks.text.embedding_rows:embedding_rows"),
    "exact_text": _attack("seepage.attacks.text.exact_text:exact_text"),
    "exact_table": _attack("seepage.attacks.tables.exact_table:exact_table"),
    "tableak": _attack("seepage.attacks.tables.tableak:tableak"),
    "trap_weights": _attack("seepage.attacks.traps.trap_weights:trap_weights", "craft_weights"),
    "quantile_traps": _attack("seepage.attacks.traps.quantile_traps:quantile_traps", "craft_weights"),
    "shifted_rows": _attack(
        "seepage.attacks.traps.shifted_rows:shifted_rows", "auxiliary_data", "craft_weights"
    ),
    "sparse_traps": _attack("seepage.attacks.traps.sparse_traps:sparse_traps", "craft_weights"),
    "slow_drift": _attack(
        "seepage.attacks.traps.slow_drift:slow_drift", "auxiliary_data", "craft_weights", "several_rounds"
    ),
    "amplification": _attack("seepage.attacks.traps.amplification:amplification", "craft_weights"),
    "imprint": _attack("seepage.attacks.traps.imprint:imprint", "craft_weights"),
    "decepticons": _attack("seepage.attacks.text.decepticons:decepticons", "craft_weights"),
    "class_fishing": _attack("seepage.attacks.fishing.class_fishing:class_fishing", *_FISHES),
    "moderate_fishing": _attack("seepage.attacks.fishing.class_fishing:moderate_fishing", *_FISHES),
    "feature_fishing": _attack(
        "seepage.attacks.fishing.feature_fishing:feature_fishing",
        "auxiliary_data",
        "batch_size",
        "craft_weights",
    ),
    "one_shot_binary_fishing": _attack(
        "seepage.attacks.fishing.binary_fishing:one_shot_binary_fishing", *_FISHES
    ),
    "binary_fishing": _attack("seepage.attacks.fishing.binary_fishing:binary_fishing", *_FISHES),
    "cross_device_fishing": _attack(
        "seepage.attacks.fishing.cross_device_fishing:cross_device_fishing", *_FISHES
    ),
    "model_inconsistency": _attack(
        "seepage.attacks.sums.model_inconsistency:model_inconsistency",
        "craft_weights",
        "different_models",
        "several_rounds",
    ),
    "gradient_disaggregation": _attack(
        "seepage.attacks.sums.disaggregation:gradient_disaggregation",
        "batch_size",
        "choose_clients",
        "craft_weights",
        "several_rounds",
    ),
    "loki": _attack("seepage.attacks.sums.loki:loki", "craft_weights", "different_models"),
    "scale_mia": _attack("seepage.attacks.sums.scale_mia:scale_mia", "auxiliary_data", "craft_weights"),
    "class_representatives": _attack(
        "seepage.attacks.representatives.class_representatives:class_representatives", "auxiliary_data"
    ),
    "adaptive": _attack("seepage.attacks.adaptive.attack:adaptive"),
}
