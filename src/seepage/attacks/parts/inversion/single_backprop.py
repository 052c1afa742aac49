"""The gradient-matching objective for one example without double backprop, in piecewise-linear networks.

For one example the gradient of the last bias *is* p - y. With the cross-entropy replaced by
<p - y, logits(x)>, p - y held at its observed value, the backward signal delta_l of every layer is piecewise
constant in x (ReLU, max-pooling, batch norm with fixed statistics). The weight gradients
g_l(x) = delta_l (*) a_l(x) are then linear in the layers' inputs a_l, and

    dD/dx = sum_l (da_l/dx)^T [ adjoint of a -> delta_l (*) a, applied to u_l = dD/dg_l ]

One forward pass, one backward pass for the signals, weight gradients by hand, and one backward pass that
gathers all layers' terms: no second derivative anywhere. It has the same global minimum as matching with the
cross-entropy. In a smooth network (sigmoid) delta_l moves with x and this would be wrong, so the result is
compared with double backprop before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.grad import conv2d_input, conv2d_weight
from torch.nn.modules.batchnorm import _BatchNorm

from seepage.attacks.parts.inversion.distances import Distance, Weights
from seepage.attacks.parts.inversion.objective import Candidates, Evaluation, Objective
from seepage.attacks.parts.inversion.problem import Problem
from seepage.attacks.parts.layers import output_layer, trace_linear_layers
from seepage.errors import NotApplicable

AGREEMENT = 1e-3
"""Largest relative difference from double backprop on the same surrogate loss: rounding, nothing more."""
FAR = 10.0
"""A smooth activation looks linear near 0: the comparison also goes this many units away from it."""


@dataclass
class _Layer:
    """One layer with parameters, and what passed through it in the last forward pass."""

    module: nn.Module
    weight: str | None
    bias: str | None
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)


def single_backprop_matching(
    problem: Problem, distance: Distance, weights: Weights, start: Candidates
) -> Objective | None:
    """The fast objective, or None where it does not hold for this problem or does not agree."""
    engine = _engine(problem)
    if engine is None:
        return None
    if not _agrees(engine, problem, distance, weights, start.inputs[0]):
        return None

    def objective(candidates: Candidates) -> Evaluation:
        found = [engine.evaluate(x, distance, weights) for x in candidates.inputs]
        values, gradients = zip(*found, strict=True)
        return Evaluation(torch.stack(values), (torch.stack(gradients),))

    return objective


def _engine(problem: Problem) -> SingleBackprop | None:
    """None unless there is one example, one gradient, a last bias, and no layer of an unknown kind."""
    if problem.num_examples != 1 or not problem.one_gradient or problem.embedding is not None:
        return None
    if not problem.training.loss.startswith("cross_entropy") or problem.training.batch_norm == "train":
        return None
    try:
        layers = trace_linear_layers(problem.model, problem.spec)
        head = output_layer(layers, num_classes=problem.spec.num_classes)
    except NotApplicable:
        return None
    owned = _layers(problem.model)
    names = {name for layer in owned for name in (layer.weight, layer.bias) if name is not None}
    if head.bias is None or head.bias not in problem.names or not set(problem.names) <= names:
        return None
    signal = problem.observed[problem.names.index(head.bias)]
    return SingleBackprop(problem, owned, signal)


def _layers(model: nn.Module) -> list[_Layer]:
    found = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d | _BatchNorm):
            prefix = f"{name}." if name else ""
            found.append(
                _Layer(
                    module,
                    f"{prefix}weight" if module.weight is not None else None,
                    f"{prefix}bias" if module.bias is not None else None,
                )
            )
    return found


class SingleBackprop:
    """Distance and its gradient for one candidate of one example."""

    def __init__(self, problem: Problem, layers: list[_Layer], signal: Tensor) -> None:
        self.problem, self.layers, self.signal = problem, layers, signal

    def evaluate(self, inputs: Tensor, distance: Distance, weights: Weights) -> tuple[Tensor, Tensor]:
        """(1, *shape) candidate to the distance and its gradient."""
        x = inputs.detach().requires_grad_()
        with self._recording():
            logits = self.problem.model(x)
        used = [layer for layer in self.layers if layer.outputs]
        deltas = torch.autograd.grad(
            (logits * self.signal).sum(), [layer.outputs[0] for layer in used], retain_graph=True
        )
        simulated, signals = self._gradients(used, deltas)
        value, pull = _pull(simulated, self.problem.observed, distance, weights)
        by_name = dict(zip(self.problem.names, pull, strict=True))
        injected = [
            (layer.inputs[0], _adjoint(layer, signals[id(layer)], by_name))
            for layer in used
            if layer.weight in by_name
        ]
        gradient = torch.autograd.grad([a for a, _ in injected], x, [g for _, g in injected])[0]
        for layer in self.layers:
            layer.inputs.clear()
            layer.outputs.clear()
        return value, gradient

    def _gradients(
        self, used: list[_Layer], deltas: tuple[Tensor, ...]
    ) -> tuple[list[Tensor], dict[int, Tensor]]:
        """Weight and bias gradients in the order of the problem, and each layer's signal."""
        found: dict[str, Tensor] = {}
        signals: dict[int, Tensor] = {}
        for layer, delta in zip(used, deltas, strict=True):
            signals[id(layer)] = delta
            if layer.weight is not None:
                found[layer.weight] = _weight_gradient(layer, delta)
            if layer.bias is not None:
                found[layer.bias] = _bias_gradient(layer, delta)
        missing = {n: self.problem.model.get_parameter(n) for n in self.problem.names if n not in found}
        return [found[n] if n in found else torch.zeros_like(missing[n]) for n in self.problem.names], signals

    @contextmanager
    def _recording(self) -> Iterator[None]:
        def keep(layer: _Layer) -> object:
            def hook(_module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
                layer.inputs.append(args[0])
                layer.outputs.append(output)

            return layer.module.register_forward_hook(hook)

        handles = [keep(layer) for layer in self.layers]
        frozen = [(p, p.requires_grad) for p in self.problem.model.parameters()]
        for parameter, _ in frozen:
            parameter.requires_grad_(False)  # autograd then computes no weight gradients of its own
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()  # type: ignore[attr-defined]
            for parameter, flag in frozen:
                parameter.requires_grad_(flag)


def _normalised(layer: _Layer) -> Tensor:
    """The input of a batch norm with its fixed statistics removed."""
    norm = layer.module
    assert isinstance(norm, _BatchNorm) and norm.running_mean is not None and norm.running_var is not None
    shape = (1, -1, *(1,) * (layer.inputs[0].dim() - 2))
    mean, var = norm.running_mean.view(shape), norm.running_var.view(shape)
    return (layer.inputs[0] - mean) * (var + norm.eps).rsqrt()


def _spatial(tensor: Tensor) -> tuple[int, ...]:
    """All dimensions but the channels."""
    return (0, *range(2, tensor.dim()))


def _weight_gradient(layer: _Layer, delta: Tensor) -> Tensor:
    module, a = layer.module, layer.inputs[0].detach()
    if isinstance(module, nn.Conv2d):
        by_convolution: Tensor = conv2d_weight(a, module.weight.shape, delta, *_geometry(module))
        return by_convolution
    if isinstance(module, nn.Linear):
        return delta.flatten(0, -2).T @ a.flatten(0, -2)
    return (delta * _normalised(layer).detach()).sum(dim=_spatial(delta))


def _bias_gradient(layer: _Layer, delta: Tensor) -> Tensor:
    if isinstance(layer.module, nn.Linear):
        return delta.flatten(0, -2).sum(dim=0)
    return delta.sum(dim=_spatial(delta))


def _adjoint(layer: _Layer, delta: Tensor, pull: dict[str, Tensor]) -> Tensor:
    """The gradient of <u, g(a)> with respect to the layer's input a, its signal held constant."""
    module, a = layer.module, layer.inputs[0]
    assert layer.weight is not None
    u = pull[layer.weight]
    if isinstance(module, nn.Conv2d):
        by_convolution: Tensor = conv2d_input(a.shape, u, delta, *_geometry(module))
        return by_convolution
    if isinstance(module, nn.Linear):
        return delta @ u
    assert isinstance(module, _BatchNorm) and module.running_var is not None
    shape = (1, -1, *(1,) * (a.dim() - 2))
    return delta * (u * (module.running_var + module.eps).rsqrt()).view(shape)


def _geometry(module: nn.Conv2d) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    return module.stride, _padding(module), module.dilation, module.groups


def _padding(module: nn.Conv2d) -> tuple[int, ...]:
    if isinstance(module.padding, str):  # "same" or "valid"
        if module.padding == "valid":
            return (0,) * len(module.kernel_size)
        return tuple(d * (k - 1) // 2 for d, k in zip(module.dilation, module.kernel_size, strict=True))
    return tuple(module.padding)


def _pull(
    simulated: list[Tensor], observed: tuple[Tensor, ...], distance: Distance, weights: Weights
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The distance, and u = dD/dg for every parameter."""
    leaves = [t.detach().requires_grad_() for t in simulated]
    with torch.enable_grad():
        value = distance(leaves, observed, weights)
        pull = torch.autograd.grad(value, leaves, allow_unused=True)
    filled = tuple(torch.zeros_like(t) if u is None else u for t, u in zip(leaves, pull, strict=True))
    return value.detach(), filled


def _agrees(
    engine: SingleBackprop, problem: Problem, distance: Distance, weights: Weights, inputs: Tensor
) -> bool:
    """Compare with double backprop of the same surrogate loss: at the start, and far away."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(inputs.shape, generator=generator).to(inputs) * problem.unit
    for x in (inputs, problem.centre + FAR * noise):
        try:
            value, fast = engine.evaluate(x, distance, weights)
            expected_value, slow = _by_double_backprop(engine, problem, distance, weights, x)
        except (RuntimeError, NotImplementedError):
            return False
        same = torch.allclose(value, expected_value, rtol=AGREEMENT, atol=1e-6)
        if not same or (fast - slow).norm() > AGREEMENT * slow.norm():
            return False
    return True


def _by_double_backprop(
    engine: SingleBackprop, problem: Problem, distance: Distance, weights: Weights, inputs: Tensor
) -> tuple[Tensor, Tensor]:
    x = inputs.detach().requires_grad_()
    parameters = [problem.model.get_parameter(name) for name in problem.names]
    loss = (problem.model(x) * engine.signal).sum()
    grads = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
    filled = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)]
    value = distance(filled, problem.observed, weights)
    return value.detach(), torch.autograd.grad(value, x)[0]
