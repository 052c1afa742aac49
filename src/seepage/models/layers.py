"""Finding a model's linear layers by running it, not by guessing from names.

An attack must know which gradient rows hold inputs and which layer makes the logits. Module names and
registration order say neither, so one dummy batch is traced, and what a layer reads, how often it is
applied and whether a ReLU follows are all decided by behaviour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from seepage.core.errors import NotApplicable
from seepage.core.types import InputSpec, Modality
from seepage.models.hooks import hooked, modules_of
from seepage.models.probes import PROBE_EXAMPLES, dummy_inputs, run_model, same_values
from seepage.models.remembered import remembered
from seepage.protocol import training_mode
from seepage.protocol.widening import model_placement

RELU_PROBES = 4
"""Passes, at most, that show a ReLU. Cost: a pass there and back each; one shows a layer of
`ENOUGH_OUTPUTS`."""
ENOUGH_OUTPUTS = 64
"""Positive outputs seen of a layer after which it needs no further probe: wide layers are costly to run.
Derived: where half of so many pass a gradient on, fewer than `ALIVE_SHARE` do so by a chance below 1e-6."""
ALIVE_SHARE = 0.2
"""Share of positive outputs that must pass a gradient on before zeros below count as a ReLU's. Tested:
test_the_share_of_live_outputs_lies_on_a_plateau."""


@dataclass(frozen=True, kw_only=True)
class LinearLayer:
    """One nn.Linear as the forward pass uses it."""

    name: str
    weight: str
    """Name of the weight parameter, as in an `Update`."""
    bias: str | None
    in_features: int
    out_features: int
    reads: Literal["input", "embedding", "features"]
    per_example: bool
    """Applied exactly once to each example: gradient rows are sums over examples, not over positions."""
    embedding: str | None
    """Where `reads` is embedding: the name of the embedding's weight parameter."""
    followed_by_relu: bool
    trained: bool
    """Neither weight nor bias is frozen, so that clients send the gradients of both."""
    index: int
    """Place in the order of execution."""


@dataclass
class _Call:
    name: str
    module: nn.Linear
    input: Tensor
    output_shape: torch.Size


def trace_linear_layers(model: nn.Module, spec: InputSpec) -> list[LinearLayer]:
    """Every nn.Linear of `model` in the order of its first execution.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    >>> spec = InputSpec(modality=Modality.IMAGE, shape=(1, 2, 2), num_classes=2)
    >>> [(layer.weight, layer.reads, layer.followed_by_relu) for layer in trace_linear_layers(model, spec)]
    [('1.weight', 'input', True), ('3.weight', 'features', False)]
    """
    key = ("linear layers", spec.shape, spec.vocabulary)
    return list(remembered(model, key, lambda: _trace(model, spec)))


def _trace(model: nn.Module, spec: InputSpec) -> list[LinearLayer]:
    inputs = dummy_inputs(spec, PROBE_EXAMPLES, like=model)
    # first names win, as in named_parameters(): an update holds a shared weight under that name only
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    with training_mode(model, False):
        calls, embedded = _record(model, inputs)
        relus = _followed_by_relu(model, inputs, {call.name: call.output_shape for call in calls})
    uses: dict[int, int] = {}
    for call in calls:
        uses[id(call.module.weight)] = uses.get(id(call.module.weight), 0) + 1

    layers: dict[str, LinearLayer] = {}
    for call in calls:
        weight, bias = call.module.weight, call.module.bias
        # a weight computed from others (pruning, weight norm) is in no update: nothing to read there
        if call.name in layers or id(weight) not in names:
            continue
        source = next((name for name, out in embedded if same_values(call.input, out)), None)
        reads_input = spec.modality is not Modality.TEXT and same_values(call.input, inputs)
        layers[call.name] = LinearLayer(
            name=call.name,
            weight=names[id(weight)],
            bias=None if bias is None else names.get(id(bias)),
            trained=weight.requires_grad and (bias is None or bias.requires_grad),
            in_features=call.module.in_features,
            out_features=call.module.out_features,
            reads="input" if reads_input else "embedding" if source else "features",
            per_example=(
                call.input.dim() == 2 and len(call.input) == PROBE_EXAMPLES and uses[id(weight)] == 1
            ),
            embedding=None if source is None else names[id(model.get_submodule(source).weight)],
            followed_by_relu=call.name in relus,
            index=len(layers),
        )
    return list(layers.values())


def output_layer(layers: Sequence[LinearLayer], *, num_classes: int) -> LinearLayer:
    """The last executed layer with one output a class (or a single one for two classes)."""
    widths = {num_classes, 1} if num_classes == 2 else {num_classes}
    for layer in reversed(layers):
        if layer.out_features in widths:
            return layer
    raise NotApplicable(
        f"No linear layer of the model has {num_classes} outputs, so there is no last layer to read labels "
        "from: give the right number of classes or use a model that ends in nn.Linear."
    )


def _record(model: nn.Module, inputs: Tensor) -> tuple[list[_Call], list[tuple[str, Tensor]]]:
    """Calls of linear layers, and the outputs of embeddings that were given the model's own tokens."""
    calls: list[_Call] = []
    embedded: list[tuple[str, Tensor]] = []

    def linear(name: str, module: nn.Linear, args: tuple[Tensor, ...], output: Tensor) -> None:
        # cloned: an in-place activation would change what was seen
        calls.append(_Call(name, module, args[0].detach().clone(), output.shape))

    def embedding(name: str, module: nn.Embedding, args: tuple[Tensor, ...], output: Tensor) -> None:
        if same_values(args[0], inputs):
            embedded.append((name, output.detach().clone()))

    linears, embeddings = modules_of(model, nn.Linear), modules_of(model, nn.Embedding)
    with torch.no_grad(), hooked(linears, after=linear), hooked(embeddings, after=embedding):
        run_model(model, inputs)
    return calls, embedded


def _followed_by_relu(model: nn.Module, inputs: Tensor, shapes: dict[str, torch.Size]) -> set[str]:
    """Layers whose output passes no gradient where negative, but does where positive.

    Seen from the derivative, so functional ReLUs count too. Each layer's output is *replaced* by noise
    of both signs (a crafted layer may be negative on every dummy input) while derivatives still flow
    through it: noise + (output - output.detach()).
    """
    generator = torch.Generator().manual_seed(1)
    linears = {name: module for name, module in modules_of(model, nn.Linear).items() if name in shapes}
    norms = modules_of(model, _BatchNorm)
    leaks: dict[str, bool] = dict.fromkeys(shapes, False)
    alive, seen = dict.fromkeys(shapes, 0), dict.fromkeys(shapes, 0)
    device, dtype = model_placement(model)

    def noise(shape: torch.Size) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    for _ in range(RELU_PROBES):
        taps: dict[str, Tensor] = {}

        def linear(
            name: str, module: nn.Linear, args: object, output: Tensor, taps: dict[str, Tensor] = taps
        ) -> Tensor:
            tap = noise(output.shape).requires_grad_()
            taps[name] = tap
            return tap + (output - output.detach())

        def batch_norm(name: str, module: nn.Module, args: object, output: Tensor) -> Tensor:
            # an untrained batch norm is the identity in eval mode: a ReLU behind it is not the layer's own
            return output + noise(output.shape)

        with torch.enable_grad(), hooked(linears, after=linear), hooked(norms, after=batch_norm):
            output = run_model(model, inputs)
            if not taps or not output.requires_grad:
                return set()
            grads = torch.autograd.grad(
                (output * noise(output.shape)).sum(), list(taps.values()), allow_unused=True
            )
        for (name, tap), grad in zip(taps.items(), grads, strict=True):
            passed = torch.zeros_like(tap, dtype=torch.bool) if grad is None else grad != 0
            leaks[name] |= bool(passed[tap < 0].any())
            alive[name] += int(passed[tap > 0].sum())
            seen[name] += int((tap > 0).sum())
        if min(seen.values()) >= ENOUGH_OUTPUTS:
            break
    return {name for name in shapes if not leaks[name] and alive[name] > ALIVE_SHARE * seen[name]}
