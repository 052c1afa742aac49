"""Amplification: a louder last layer lifts every gradient before it over noise of a fixed size.

The gradient of a layer is what the layers behind it send back, so the last layer's weights times a factor
multiply all gradients but its own. Unclipped noise does not grow with them: a sigma that hides an honest
update is a thousandth of a grey step after a factor of 1e5. The loss saturates, so an example that the
louder model happens to classify rightly sends nothing; all others send whole backward signals.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from seepage.attacks.traps.crafted_extraction import READERS, Bait, CraftedExtraction, Secret
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.registry import lookup
from seepage.core.types import Exchange, Knowledge
from seepage.models.choice import choose_layer
from seepage.models.layers import output_layer, trace_linear_layers


@dataclass(frozen=True, kw_only=True)
class Amplifier:
    """Multiplies the weights of the last dense layer; its biases stay, for they lift nothing."""

    factor: float
    layer: str | None

    def check(self, model: nn.Module, known: Knowledge) -> None:
        read = choose_layer(model, known.input, self.layer)
        last = output_layer(trace_linear_layers(model, known.input), num_classes=known.input.num_classes)
        if last.name == read.name:
            raise NotApplicable(
                f"layer '{read.name}' is the last one, and its own gradient does not grow with its weights: "
                "use a model with a dense layer before it."
            )

    def craft(self, model: nn.Module, history: Sequence[Exchange], known: Knowledge, *, seed: int) -> Bait:
        self.check(model, known)
        read = choose_layer(model, known.input, self.layer)
        last = output_layer(trace_linear_layers(model, known.input), num_classes=known.input.num_classes)
        crafted = copy.deepcopy(model)
        with torch.no_grad():
            crafted.get_parameter(last.weight).mul_(self.factor)
        note = f"The weights of '{last.name}' were sent {self.factor:g} times as large; the rest is honest."
        return Bait(crafted, Secret(layer=read.name, notes=(note,)))


def amplification(
    *,
    factor: float = 1e5,
    layer: str | None = None,
    rounds: Sequence[int] = (0,),
    clients: Sequence[int] | None = None,
    read: str = "peel",
) -> CraftedExtraction:
    """Dishonest server against unclipped noise: a last layer 1e5 times as large lifts all gradients over it.

    factor: of the last layer's weights; 1e4 to 1e6 beat noise of 0.01.
    layer: the dense layer that is read, by default the first.
    rounds, clients: when and to whom the crafted model is sent.
    read: "peel" takes found examples away and reads what they hid; "rows" reads each row by itself.
    """
    if not (factor > 0 and math.isfinite(factor)):
        raise SpecError(f"factor must be positive, not {factor}: 1e5 is the usual choice.")
    lookup(READERS, read, "reader")
    crafter = Amplifier(factor=factor, layer=layer)
    return CraftedExtraction(crafter, read=read, rounds=rounds, clients=clients)
