"""A model as a chain of linear maps with invertible steps between them, found by running it.

Every leaf module's input must be the output of the one before it, whatever either is called: that is what
rules out residual connections, branches and operations outside modules.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.modules.pooling import _AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd, _AvgPoolNd, _MaxPoolNd

from seepage.attacks.closed_form.recursion.steps import Step, functional_step, step_of
from seepage.core.errors import NotApplicable
from seepage.core.types import InputSpec
from seepage.models.path import LeafCall, leaf_calls
from seepage.models.probes import PROBE_EXAMPLES, dummy_inputs, run_model, same_values
from seepage.protocol import training_mode

_POOLS = (_MaxPoolNd, _AvgPoolNd, _AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd)
_ELSE = "try an attack that optimises, such as 'inverting_gradients'."


@dataclass(frozen=True)
class Window:
    """How a convolution cuts its input into patches: the arguments of `F.unfold`."""

    kernel_size: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int]
    stride: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Link:
    """One linear map of the chain, and what is done to its output before the next one."""

    name: str
    weight: str
    """Name of the weight parameter, as in an `Update`."""
    bias: str | None
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    window: Window | None
    """None for nn.Linear."""
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Chain:
    """Steps on the input, then the links from input to output; the last one makes the logits."""

    input_shape: tuple[int, ...]
    steps: tuple[Step, ...]
    links: tuple[Link, ...]


def trace_chain(model: nn.Module, spec: InputSpec) -> Chain:
    """The model as a chain, or NotApplicable with the first thing that breaks it.

    >>> from seepage.core.types import Modality
    >>> model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2))
    >>> chain = trace_chain(model, InputSpec(modality=Modality.IMAGE, shape=(1, 4, 4), num_classes=2))
    >>> [(link.name, link.input_shape, len(link.steps)) for link in chain.links]
    [('0', (1, 4, 4), 1), ('3', (12,), 0)]
    """
    inputs = dummy_inputs(spec, PROBE_EXAMPLES, like=model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    calls = leaf_calls(model, inputs)
    with training_mode(model, False), torch.no_grad():
        output = run_model(model, inputs)
    groups: list[list[Step]] = [[]]
    links: list[Link] = []
    current, previous = inputs, "the input"
    for call in calls:
        groups[-1] += _unseen(current, call.input, f"between {previous} and '{call.name}'")
        if isinstance(call.module, nn.Linear | nn.Conv2d):
            links.append(_link(call, names))
            groups.append([])
        elif not (_passes(call) and step_of(call.module) is None):
            groups[-1].append(_step(call))
        current, previous = call.output, f"'{call.name}'"
    groups[-1] += _unseen(current, output, f"after {previous}")
    _check_links(links)
    finished = [replace(link, steps=tuple(steps)) for link, steps in zip(links, groups[1:], strict=True)]
    return Chain(spec.shape, tuple(groups[0]), tuple(finished))


def _unseen(before: Tensor, after: Tensor, where: str) -> list[Step]:
    """Activations called as functions leave no module behind; anything else breaks the chain."""
    if same_values(before, after):
        return []
    # what an embedding is given has one index an example, and no second dimension to flatten
    one, other = before.reshape(len(before), -1), after.reshape(len(after), -1)
    if one.shape == other.shape:
        step = functional_step(one, other)
        if step is not None:
            return [step]
    raise NotApplicable(
        f"{where} the model does something that is no layer of a chain (a residual connection, a branch, a "
        f"functional ReLU or pooling), so it cannot be gone back through layer by layer: {_ELSE}"
    )


def _passes(call: LeafCall) -> bool:
    """Reshapes, dropout in eval mode and the like: values go through as they are."""
    relu = isinstance(call.module, nn.ReLU | nn.ReLU6)  # passes what happens to be positive
    return not relu and same_values(call.input, call.output)


def _step(call: LeafCall) -> Step:
    step = step_of(call.module)
    if step is not None:
        return step
    kind = type(call.module).__name__
    if isinstance(call.module, _POOLS):
        raise NotApplicable(
            f"'{call.name}' ({kind}) pools, which leaves fewer values than it was given: {_ELSE}"
        )
    raise NotApplicable(
        f"'{call.name}' ({kind}) cannot be inverted: only sigmoid, tanh, leaky ReLU, softplus, ELU and batch "
        f"norm in eval mode can; {_ELSE}"
    )


def _link(call: LeafCall, names: dict[int, str]) -> Link:
    module = call.module
    assert isinstance(module, nn.Linear | nn.Conv2d)
    if id(module.weight) not in names:
        raise NotApplicable(
            f"the weight of '{call.name}' is computed from other parameters, so the update does not hold its "
            f"gradient: {_ELSE}"
        )
    if isinstance(module, nn.Linear) and call.input.dim() != 2:
        raise NotApplicable(
            f"'{call.name}' is applied at several positions, whose gradients are summed: {_ELSE}"
        )
    return Link(
        name=call.name,
        weight=names[id(module.weight)],
        bias=None if module.bias is None else names[id(module.bias)],
        input_shape=tuple(call.input.shape[1:]),
        output_shape=tuple(call.output.shape[1:]),
        window=_window(call.name, module) if isinstance(module, nn.Conv2d) else None,
    )


def _window(name: str, conv: nn.Conv2d) -> Window:
    if conv.groups != 1 or conv.padding_mode != "zeros":
        raise NotApplicable(
            f"convolution '{name}' has groups or a padding other than zeros, for which no equations are "
            f"written here: {_ELSE}"
        )
    (high, wide), dilation = conv.kernel_size, conv.dilation
    if isinstance(conv.padding, str):
        reach = (dilation[0] * (high - 1), dilation[1] * (wide - 1)) if conv.padding == "same" else (0, 0)
        if reach[0] % 2 or reach[1] % 2:
            raise NotApplicable(
                f"convolution '{name}' pads its two sides differently, for which no equations are written "
                f"here: use an odd kernel, or {_ELSE}"
            )
        padding = (reach[0] // 2, reach[1] // 2)
    else:
        padding = (conv.padding[0], conv.padding[1])
    return Window((high, wide), (dilation[0], dilation[1]), padding, (conv.stride[0], conv.stride[1]))


def _check_links(links: list[Link]) -> None:
    if not links or links[-1].window is not None or links[-1].bias is None:
        last = "it has no layer" if not links else f"it ends in '{links[-1].name}'"
        raise NotApplicable(
            f"the model must end in nn.Linear with a bias, by whose gradient rows are divided, but {last}: "
            f"{_ELSE}"
        )
    weights = [link.weight for link in links]
    if len(set(weights)) < len(weights):
        raise NotApplicable(
            f"two layers share a weight, so its gradient is a sum over both and no equation of one: {_ELSE}"
        )
