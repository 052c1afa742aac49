"""By defense: what an attacker who knows of it does to the update, and how it compares updates."""

from __future__ import annotations

from dataclasses import dataclass

from seepage.attacks.adaptive.bias import bias_from_range
from seepage.attacks.adaptive.copies import Copies, one_each, transformed_copies
from seepage.attacks.adaptive.factor import undo_clipping
from seepage.attacks.adaptive.filters import (
    by_what_arrived,
    excluded_layers,
    undo_clipping_mod,
    undo_excluded,
    undo_local_dp,
    undo_percentile,
)
from seepage.attacks.adaptive.matching import by_sign, unchanged, where_sent
from seepage.attacks.adaptive.restore import (
    Restore,
    Restored,
    Settings,
    fill_pruned,
    nothing,
    remove_noise,
    undo_rounding,
    values_of_signs,
)
from seepage.attacks.adaptive.spoiled import Spoiled, defended_layer, kept_back, none_spoiled
from seepage.attacks.base import Around
from seepage.core.types import Exchange, Knowledge
from seepage.names.frameworks import unanswered


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
    "user_dp": Answer(restore=remove_noise),
    "pruning": Answer(restore=fill_pruned, distance=where_sent),
    "quantisation": Answer(restore=undo_rounding),
    "sign": Answer(restore=values_of_signs, distance=by_sign),
    "hide_bias": Answer(restore=bias_from_range, distance=where_sent),
    "soteria": Answer(distance=where_sent, spoiled=defended_layer),
    "oasis": Answer(copies=transformed_copies),
    "share_layers": Answer(distance=where_sent, spoiled=kept_back),
    "nvflare:PercentilePrivacy": Answer(restore=undo_percentile, distance=where_sent),
    "nvflare:SVTPrivacy": Answer(restore=remove_noise, distance=where_sent),
    "nvflare:ExcludeVars": Answer(restore=undo_excluded, distance=where_sent, spoiled=excluded_layers),
    "flower:LocalDpMod": Answer(restore=undo_local_dp),
    "flower:fixedclipping_mod": Answer(restore=undo_clipping_mod),
    "flower:adaptiveclipping_mod": Answer(restore=undo_clipping_mod),
}
"""Under the name of the defense, as an audit file has it. Other filters of a framework get a general answer;
other defenses have none yet."""


def answer_to(name: str) -> Answer | None:
    """The answer to a defense; to a framework's filter that is not known, the general one, which says so.

    >>> answer_to("oasis") is ANSWERS["oasis"], answer_to("median"), answer_to("flower:message_size_mod")
    (True, None, None)
    >>> answer_to("nvflare:my.package.Filter") is not None
    True
    """
    if name in ANSWERS:
        return ANSWERS[name]
    if not unanswered(name):
        return None

    def general(exchange: Exchange, known: Knowledge, settings: Settings) -> Restored:
        tensors, notes = by_what_arrived(exchange, known, settings)
        return tensors, (
            f"'{name}' is not known to seepage: it was not attacked adaptively, only by the rank, the "
            "entries that arrived and their signs.",
            *notes,
        )

    return Answer(restore=general, distance=where_sent)
