"""Attacks, one file each. ATTACKS maps a name to the function that builds it with its defaults."""

from collections.abc import Callable

from seepage.attacks.adaptive import adaptive
from seepage.attacks.analytic_extraction import analytic_extraction
from seepage.attacks.april import april
from seepage.attacks.base import Attack, PerUpdateAttack
from seepage.attacks.binary_fishing import binary_fishing, one_shot_binary_fishing
from seepage.attacks.class_fishing import class_fishing
from seepage.attacks.cross_device_fishing import cross_device_fishing
from seepage.attacks.deep_leakage import deep_leakage, idlg
from seepage.attacks.exact_extraction import exact_extraction
from seepage.attacks.feature_fishing import feature_fishing
from seepage.attacks.imprint import imprint
from seepage.attacks.inverting_gradients import inverting_gradients
from seepage.attacks.patch_embedding import patch_embedding
from seepage.attacks.prior_only import prior_only
from seepage.attacks.quantile_traps import quantile_traps
from seepage.attacks.recursive_inversion import recursive_inversion
from seepage.attacks.see_through_gradients import see_through_gradients
from seepage.attacks.tag import tag
from seepage.attacks.trap_weights import trap_weights

ATTACKS: dict[str, Callable[..., Attack]] = {
    "prior_only": prior_only,
    "analytic_extraction": analytic_extraction,
    "exact_extraction": exact_extraction,
    "deep_leakage": deep_leakage,
    "idlg": idlg,
    "inverting_gradients": inverting_gradients,
    "see_through_gradients": see_through_gradients,
    "tag": tag,
    "recursive_inversion": recursive_inversion,
    "april": april,
    "patch_embedding": patch_embedding,
    "trap_weights": trap_weights,
    "quantile_traps": quantile_traps,
    "imprint": imprint,
    "class_fishing": class_fishing,
    "feature_fishing": feature_fishing,
    "one_shot_binary_fishing": one_shot_binary_fishing,
    "binary_fishing": binary_fishing,
    "cross_device_fishing": cross_device_fishing,
    "adaptive": adaptive,
}

__all__ = ["ATTACKS", "Attack", "PerUpdateAttack"]
