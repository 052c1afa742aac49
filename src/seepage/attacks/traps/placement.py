"""Where in a model traps go: which dense layer, how the input gets there, and with which values."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pkgutil import resolve_name

import torch
from torch import Tensor, nn

from seepage.attacks.traps.carried import Bounds, Carried, Hiding, at_the_input
from seepage.attacks.traps.routes import Route
from seepage.core.errors import NotApplicable
from seepage.core.types import InputSpec, Knowledge, Modality
from seepage.models.choice import named_layer, unreadable, why_not
from seepage.models.layers import LinearLayer, trace_linear_layers
from seepage.models.path import path_to
from seepage.protocol.widening import model_placement

_WAY = "seepage.attacks.traps.pass_through:carry"
"""Loaded where a layer behind others is chosen: most traps lie in the first, which needs none of it."""
_USUAL_STDS = 2.0
"""Standard deviations within which a table's values usually lie. Derived: 95 % of a normal column."""


@dataclass(frozen=True)
class Placed:
    """A copy of the model whose layer `layer` sees every input value, ready for the trap rows."""

    model: nn.Module
    layer: LinearLayer
    carried: Carried
    """For text: of the flattened embeddings."""
    decode: Route | None
    """None where the layer reads the input or the embeddings directly."""
    note: str

    @property
    def module(self) -> nn.Linear:
        found = self.model.get_submodule(self.layer.name)
        assert isinstance(found, nn.Linear)
        return found

    def unit_values(self, inputs: Tensor) -> Tensor:
        """(n, d) values in [0, 1] of inputs as the model is fed them; token ids become embeddings."""
        if self.layer.embedding is not None:
            return self.model.get_parameter(self.layer.embedding).detach()[inputs].flatten(1)
        return (inputs.flatten(1) - self.carried.low) / (self.carried.high - self.carried.low)


def place(
    model: nn.Module, known: Knowledge, *, layer: str | None, hiding: Hiding, needs_range: bool = True
) -> Placed:
    """Copy the model and clear the way to the layer, or NotApplicable with the reason.

    needs_range: the rows are drawn for values in [0, 1]. Otherwise an unknown value range is no hindrance
    at a layer that reads the input: the rows are then meant for the values as the model is fed them.
    """
    chosen = choose_trap_layer(model, known, layer)
    unknown_range = known.normalised or known.input.value_range is None
    if unknown_range and chosen.reads == "input" and not needs_range:
        return Placed(copy.deepcopy(model), chosen, _as_fed(chosen, model), None, "")
    bounds = _bounds(known, chosen)
    crafted = copy.deepcopy(model)
    if chosen.reads == "embedding":
        note = "The embedding was redrawn from U(0, 1)."
        return Placed(crafted, chosen, _uniform_embedding(crafted, chosen, hiding), None, note)
    start = at_the_input(known.input, bounds, crafted)
    if chosen.reads == "input":
        return Placed(crafted, chosen, start, None, "")
    steps = path_to(crafted, known.input, chosen.name)
    train_mode = known.local is not None and known.local.batch_norm == "train"
    carry = resolve_name(_WAY)
    carried: Carried = carry(crafted, chosen.name, steps, start, hiding, known.input, train_mode=train_mode)
    kinds = [type(s.module).__name__ for s in steps if isinstance(s.module, nn.Conv2d | nn.Linear)]
    note = f"The input was passed through {len(kinds)} layer(s) before it ({', '.join(kinds)})."
    return Placed(crafted, chosen, carried, carried.route(), note)


def choose_trap_layer(model: nn.Module, known: Knowledge, name: str | None) -> LinearLayer:
    """The named dense layer, or the first that a trap can work in."""
    layers = trace_linear_layers(model, known.input)
    text = known.input.modality is Modality.TEXT
    if name is not None:
        named = named_layer(layers, name)
        if why := _no_trap(named, text=text):
            raise NotApplicable(f"layer '{name}' cannot hold traps: it {why}.")
        return named
    reasons = [_no_trap(layer, text=text) for layer in layers]
    for layer, why in zip(layers, reasons, strict=True):
        if not why:
            return layer
    listed = why_not(layers, reasons, otherwise="no nn.Linear at all")
    raise NotApplicable(
        f"the model has no dense layer that traps could be put into ({listed}): an attack that inserts a "
        "layer (imprint) or one that optimises may work."
    )


def _no_trap(layer: LinearLayer, *, text: bool) -> str:
    """Why no trap works in this layer; empty where one does."""
    if why := unreadable(layer):
        return why
    if not layer.followed_by_relu:
        return "is not followed by a ReLU, so every example reaches every neuron and no neuron can be a trap"
    if text and layer.reads != "embedding":
        return "does not read the token embeddings, and text is not passed through dense layers"
    return ""


def _bounds(known: Knowledge, layer: LinearLayer) -> Bounds:
    """Where raw values lie: in the value range, or in a table where each column's mean and std say."""
    if known.input.modality is Modality.TEXT:
        return (0.0, 1.0)
    if known.normalised:
        raise NotApplicable(
            "clients normalise their inputs in a way the server was not told, so a trap for values in [0, 1] "
            "would fire for everything or nothing: grant 'normalisation', or use quantile_traps with "
            "auxiliary data."
        )
    if known.input.value_range is not None:
        return known.input.value_range
    usual = usual_values(known.input) if layer.reads == "input" else None
    if usual is None:
        raise NotApplicable(
            "the range of the input values is unknown, and Algorithm 1 assumes [0, 1]: grant 'value_range', "
            "give the data a value_range, or use quantile_traps with auxiliary data."
        )
    return usual


def usual_values(spec: InputSpec) -> tuple[Tensor, Tensor] | None:
    """(d,) of a table whose scale is known: each column's mean -+ 2 std, between which 95 % of a normal one
    lie; 0 and 1 in one-hot code.

    A trap needs the scale of its inputs, not their extremes: it also works for values a little beyond. But a
    pass-through would cut those off, so this will not do for a layer further in.

    >>> spec = InputSpec(modality=Modality.TABULAR, shape=(1,), num_classes=2, mean=(40.0,), std=(10.0,))
    >>> usual_values(spec)
    (tensor([20.]), tensor([60.]))
    """
    if spec.modality is not Modality.TABULAR or spec.mean is None or spec.std is None:
        return None
    mean, std = torch.tensor(spec.mean), torch.tensor(spec.std)
    low, high = mean - _USUAL_STDS * std, mean + _USUAL_STDS * std
    one_hot = [column for group in spec.categories for column in group]
    low[one_hot], high[one_hot] = 0.0, 1.0
    return low, high


@torch.no_grad()
def _uniform_embedding(model: nn.Module, layer: LinearLayer, hiding: Hiding) -> Carried:
    """Section 8: embeddings from U(0, 1), which the dense layer then sees as if they were pixels."""
    assert layer.embedding is not None
    table = model.get_parameter(layer.embedding)
    table.copy_(hiding.uniform(tuple(table.shape), table))
    return _as_fed(layer, model)


def _as_fed(layer: LinearLayer, model: nn.Module) -> Carried:
    """Every feature in its own place, taken for a value in [0, 1] as it is."""
    device, dtype = model_placement(model)
    ones = torch.ones(layer.in_features, device=device, dtype=dtype)
    nothing = torch.zeros(layer.in_features, dtype=torch.bool, device=device)
    return Carried(
        shape=(layer.in_features,),
        where=torch.arange(layer.in_features, device=device),
        gain=ones,
        offset=torch.zeros_like(ones),
        low=torch.zeros_like(ones),
        high=ones,
        silent=nothing,
        negative=nothing,
        non_negative=True,
    )
