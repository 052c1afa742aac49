"""What runs behind a layer, by itself: passes from the layer on need not run all that comes before it.

In a deep network with one dense layer at its end that is nearly everything.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seepage.core.types import InputSpec
from seepage.models.hooks import fed, leaves_run
from seepage.models.layers import LinearLayer
from seepage.models.probes import PROBE_EXAMPLES, dummy_inputs, run_model
from seepage.models.remembered import remembered
from seepage.protocol import training_mode


def names_behind(model: nn.Module, layer: LinearLayer, spec: InputSpec) -> tuple[str, ...] | None:
    """The modules that run after the layer, one after the other, and make the model's output of its.

    None where they are not all of it: functional activations, skip connections, a layer that runs twice.

    >>> from seepage.core.types import Modality
    >>> from seepage.models.layers import trace_linear_layers
    >>> spec = InputSpec(modality=Modality.TABULAR, shape=(3,), num_classes=2)
    >>> model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    >>> [names_behind(model, layer, spec) for layer in trace_linear_layers(model, spec)]
    [('1', '2'), ()]
    """
    return remembered(model, ("behind", layer.name, spec.shape), lambda: _find(model, layer, spec))


def run_behind(model: nn.Module, names: tuple[str, ...], outputs: Tensor) -> Tensor:
    """The model's output for these outputs of the layer."""
    for name in names:
        outputs = model.get_submodule(name)(outputs)
    return outputs


def _find(model: nn.Module, layer: LinearLayer, spec: InputSpec) -> tuple[str, ...] | None:
    module = model.get_submodule(layer.name)
    weight = model.get_parameter(layer.weight)
    generator = torch.Generator().manual_seed(0)
    # what passes the layer by would show, for the model is given something else than the layer
    features = torch.randn(PROBE_EXAMPLES, layer.in_features, generator=generator).to(weight)

    with torch.no_grad(), training_mode(model, False):
        with leaves_run(model) as leaves, fed(module, features):
            whole = run_model(model, dummy_inputs(spec, PROBE_EXAMPLES, like=model))
        ran = [name for name, _ in leaves]
        if ran.count(layer.name) != 1:
            return None
        names = tuple(ran[ran.index(layer.name) + 1 :])
        try:
            alone = run_behind(model, names, module(features))
        except (RuntimeError, TypeError):  # a module that wants more than the one before it gives
            return None
    return names if torch.equal(alone, whole) else None
