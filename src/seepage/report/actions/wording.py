"""What a change means for the people who run a deployment: in plain words, one entry a remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from seepage.record import DefenseRecord, epsilon_text


class Wording(NamedTuple):
    """Of one remedy: a title, how it is done, and what it costs besides accuracy."""

    title: str
    how: str
    also: str


_Words = Callable[[Mapping[str, Any], int], Wording]

_WORDS: dict[str, _Words] = {
    "secure_sum": lambda settings, batch: Wording(
        f"Let the server see only the sum of {settings['clients']} clients",
        "Turn secure aggregation on (Flower: SecAgg+; FLARE: homomorphic encryption), with at least "
        f"{settings['clients']} clients in every round.",
        "More messages a round. Clients must be able to tell that the others are real.",
    ),
    "larger_batches": lambda settings, batch: Wording(
        f"Use {settings['factor'] * batch} examples for an update instead of {batch}",
        "Raise the clients' batch size, and leave the number of updates as it is.",
        f"{settings['factor']} times the computing in a round.",
    ),
    "local_averaging": lambda settings, batch: Wording(
        f"Take {settings['batches']} local steps before anything is sent",
        f"Let every client train on {settings['batches']} batches of {batch} and send the change of its "
        "weights (FedAvg).",
        f"{settings['batches']} times the computing in a round, and usually fewer rounds.",
    ),
    "share_layers": lambda settings, batch: Wording(
        "Freeze the first layer, or keep its update at home",
        "Set requires_grad to False for the first layer that runs, or leave its tensors out of what is sent.",
        "That layer stays as it was before the federation.",
    ),
    "dp_sgd": lambda settings, batch: Wording(
        f"Clip each example's gradient to {settings['clip']:g} and add noise of {settings['sigma']:g} clips",
        "Train with DP-SGD on the clients (Opacus: make_private with max_grad_norm = "
        f"{settings['clip']:g}, noise_multiplier = {settings['sigma']:g}).",
        "Each example's gradient is computed by itself. More rounds need more noise for the same ε.",
    ),
    "refuse_traps": lambda settings, batch: Wording(
        "Check every received model, and refuse traps",
        "Call seepage.guard on the received weights before training, or use the Flower mod.",
        "About two CPU seconds a round for 100 million weights. Honest models are refused now and then.",
    ),
    "gate": lambda settings, batch: Wording(
        "Let clients measure each update before it leaves, and leave exposed examples out",
        'Use the gate on the clients (Flower: mods=[gatekeeper(Net(), my_batch, action="drop", quick=True)]; '
        "FLARE: the filter GateUpdates).",
        "One to two more training steps for each update. Nothing is sent where every example is exposed.",
    ),
}


def wording(point: DefenseRecord, batch_size: int) -> Wording:
    """For a point of the study; a remedy that has no words of its own goes by its description.

    >>> from seepage.record import DefenseRef
    >>> ref = DefenseRef(name="larger_batches", params={"factor": 4})
    >>> wording(DefenseRecord(defense=ref, description="", guarantee="heuristic"), 20).title
    'Use 80 examples for an update instead of 20'
    """
    words = _WORDS.get(point.defense.name)
    if words is None:
        return Wording(point.title, point.description, "")
    return words(point.defense.params, batch_size)


def proof(point: DefenseRecord) -> str:
    """What is promised beyond what was measured."""
    if point.epsilon is None:
        return "No proof stands behind it: a better attack may get more."
    return (
        f"Proven against every attack: ε = {epsilon_text(point.epsilon)} at δ = {point.delta:g} for "
        f"{point.protects}, over {point.steps} releases."
    )
