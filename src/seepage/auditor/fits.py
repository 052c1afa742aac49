"""Whether an attack of the catalogue fits an audit: the threat model, the model and the data."""

from __future__ import annotations

from seepage.attacks.parts.inversion.feature_statistics import batch_norms
from seepage.auditor.prepare import Prepared
from seepage.errors import SeepageError
from seepage.federation import knowledge, missing_grants
from seepage.federation.widening import wide_batch, wide_model
from seepage.isolation.attack import planned_attack
from seepage.log import NotTried
from seepage.types import Knowledge, Modality


def why_not(prepared: Prepared, name: str) -> NotTried | None:
    """What stands against an attack with its default settings before it is tried; None: nothing."""
    attack = planned_attack(name, {})
    if lacking := missing_grants(attack.requires, prepared.threat, prepared.spec.protocol.aggregation):
        return NotTried(name=name, why="not_granted", reason=f"it {lacking}")
    seed = prepared.spec.seeds[0]
    model = prepared.model(seed)
    try:
        attack.check(wide_model(model), _known(prepared, seed))
    except SeepageError as reason:  # also a model that this attack cannot run in its own type of numbers
        return NotTried(name=name, why="does_not_fit", reason=str(reason))
    modality = prepared.dataset.spec.modality
    if name == "tag" and modality is not Modality.TEXT:
        return NotTried(
            name=name,
            why="does_not_fit",
            reason="it was made for text, and inverting_gradients is the search for other data: name it to "
            "run it all the same.",
        )
    if name == "see_through_gradients" and not batch_norms(model):
        return NotTried(
            name=name,
            why="does_not_fit",
            reason="it lives on the statistics of batch norm layers, and this model has none: name it to run "
            "it all the same.",
        )
    return None


def _known(prepared: Prepared, seed: int) -> Knowledge:
    public = prepared.draw(seed)[1]
    return knowledge(
        prepared.threat,
        prepared.spec.protocol.aggregation,
        spec=prepared.data(seed).spec,
        loss=prepared.loss,
        local=prepared.local,
        auxiliary=None if public is None else wide_batch(public),
        seed=seed,
    )


def not_listed(name: str) -> NotTried:
    return NotTried(
        name=name,
        why="not_listed",
        reason='it fits, but this audit names its attacks: add it to them, or set attacks = "auto".',
    )
