"""Whether an attack of the catalogue fits an audit: the threat model, the model and the data."""

from __future__ import annotations

from seepage.attacks.inversion.feature_statistics import batch_norms
from seepage.core.errors import SeepageError
from seepage.core.types import Modality
from seepage.core.user_code import USER_CODE_ERRORS
from seepage.core.user_code import reason as brief
from seepage.engine.isolation.attack import planned_attack
from seepage.engine.shared import Shared
from seepage.protocol import missing_grants
from seepage.record import NotTried


def why_not(shared: Shared, name: str) -> NotTried | None:
    """What stands against an attack with its default settings before it is tried; None: nothing."""
    prepared, attack = shared.prepared, planned_attack(name, {})
    if lacking := missing_grants(attack.requires, prepared.threat, prepared.spec.protocol.aggregation):
        return NotTried(name=name, why="not_granted", reason=f"it {lacking}")
    model = shared.source.model
    try:
        attack.check(attack.held_as(model), shared.known_to_server())
    except SeepageError as reason:  # also a model that this attack cannot run in its own type of numbers
        return NotTried(name=name, why="does_not_fit", reason=str(reason))
    except USER_CODE_ERRORS as error:
        told = f"it broke off when it looked into the model ({type(error).__name__}: {brief(error)})."
        return NotTried(name=name, why="does_not_fit", reason=told)
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


def not_listed(name: str) -> NotTried:
    return NotTried(
        name=name,
        why="not_listed",
        reason='this audit names its attacks, and not all that fit: attacks = "auto" tries those too.',
    )
