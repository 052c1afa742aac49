"""By defense: what an attacker who knows of it does to the update, and how it compares updates."""

from __future__ import annotations

from dataclasses import dataclass

from seepage.attacks.parts.adaptive.bias import bias_from_range
from seepage.attacks.parts.adaptive.copies import Copies, one_each, transformed_copies
from seepage.attacks.parts.adaptive.factor import undo_clipping
from seepage.attacks.parts.adaptive.matching import Around, by_sign, unchanged, where_sent
from seepage.attacks.parts.adaptive.restore import (
    Restore,
    fill_pruned,
    nothing,
    remove_noise,
    undo_rounding,
    values_of_signs,
)
from seepage.attacks.parts.adaptive.spoiled import Spoiled, defended_layer, kept_back, none_spoiled


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to one defense."""

    restore: Restore = nothing
    distance: Around = unchanged
    """For attacks that search for inputs whose update looks like the one that was sent."""
    spoiled: Spoiled = none_spoiled
    """For attacks that read or craft one layer: where not to."""
    copies: Copies = one_each
    """Training examples for each of the client's."""


ANSWERS: dict[str, Answer] = {
    "clipping": Answer(restore=undo_clipping),
    "central_dp": Answer(restore=undo_clipping),
    "gaussian_noise": Answer(restore=remove_noise),
    "dp_sgd": Answer(restore=remove_noise),
    "pruning": Answer(restore=fill_pruned, distance=where_sent),
    "quantisation": Answer(restore=undo_rounding),
    "sign": Answer(restore=values_of_signs, distance=by_sign),
    "hide_bias": Answer(restore=bias_from_range, distance=where_sent),
    "soteria": Answer(distance=where_sent, spoiled=defended_layer),
    "oasis": Answer(copies=transformed_copies),
    "share_layers": Answer(distance=where_sent, spoiled=kept_back),
}
"""Under the name of the defense, as an audit file has it. Defenses that are not here have no answer yet."""
