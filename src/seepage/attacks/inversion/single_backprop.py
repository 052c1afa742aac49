"""The gradient-matching objective for one example without double backprop, in piecewise-linear networks.

For one example the gradient of the last bias *is* p - y. With the cross-entropy replaced by
<p - y, logits(x)>, p - y held at its observed value, the backward signal delta_l of every layer is piecewise
constant in x (ReLU, max-pooling, batch norm with fixed statistics). The weight gradients
g_l(x) = delta_l (*) a_l(x) are then linear in the layers' inputs a_l, and

    dD/dx = sum_l (da_l/dx)^T [ adjoint of a -> delta_l (*) a, applied to u_l = dD/dg_l ]

One forward pass, one backward pass for the signals, weight gradients by hand, and one backward pass that
gathers all layers' terms: no second derivative anywhere. It has the same global minimum as matching with the
cross-entropy. In a smooth network (sigmoid) delta_l moves with x and this would be wrong, so the result is
compared with double backprop before it is used, unless the network is a chain of layers known to be linear
in pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from seepage.attacks.inversion.distances import Distance, Pull, Weights, pull_of
from seepage.attacks.inversion.layer_terms import LayerTerms, terms_of
from seepage.attacks.inversion.memory import keep_freed_memory
from seepage.attacks.inversion.objective import Candidates, Evaluation, Objective
from seepage.attacks.inversion.piecewise_linear import is_known_chain
from seepage.attacks.inversion.problem import Problem
from seepage.attacks.inversion.winograd import WinogradTerms, suits_winograd
from seepage.core.errors import NotApplicable
from seepage.models.hooks import hooked
from seepage.models.layers import output_layer, trace_linear_layers

AGREEMENT = 1e-3
"""Largest relative difference from double backprop on the same surrogate loss: rounding, nothing more.
No plateau test yet."""
FAR = 10.0
"""A smooth activation looks linear near 0: the comparison also goes this many units away from it. Derived:
there sigmoid, tanh and softplus are within 5e-5 of their ends."""
AT_ONCE = 2**15
"""Input values in one pass, as ten restarts of CIFAR. Cost: more save no time, and memory grows with them."""


def single_backprop_matching(
    problem: Problem, distance: Distance, weights: Weights, start: Candidates
) -> Objective | None:
    """The fast objective, or None where it does not hold for this problem or does not agree."""
    engine = _engine(problem, distance, weights)
    if engine is None:
        return None
    if not is_known_chain(problem.model) and not _agrees(problem, distance, weights, start.inputs[:1]):
        return None
    keep_freed_memory()
    together = max(1, AT_ONCE // start.inputs[0].numel())

    def objective(candidates: Candidates) -> Evaluation:
        found = [engine.evaluate(inputs) for inputs in candidates.inputs.split(together)]
        values, gradients = zip(*found, strict=True)
        return Evaluation(torch.cat(values), (torch.cat(gradients),))

    return objective


def _engine(
    problem: Problem, distance: Distance, weights: Weights, *, winograd: bool = True
) -> SingleBackprop | None:
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
    owned = _terms(problem.model, winograd=winograd)
    names = {name for layer in owned for name in (layer.weight, layer.bias) if name is not None}
    if head.bias is None or head.bias not in problem.names or not set(problem.names) <= names:
        return None
    signal = problem.observed[problem.names.index(head.bias)]
    return SingleBackprop(problem, owned, signal, distance, weights)


def _terms(model: nn.Module, *, winograd: bool) -> list[LayerTerms]:
    found: list[LayerTerms] = []
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        own = dict(module.named_parameters(recurse=False))
        weight, bias = (f"{prefix}{kind}" if kind in own else None for kind in ("weight", "bias"))
        if winograd and suits_winograd(module):
            found.append(WinogradTerms(module, weight, bias))
        elif (terms := terms_of(module, weight, bias)) is not None:
            found.append(terms)
    return found


class SingleBackprop:
    """Distance and its gradient for restarts of one example."""

    def __init__(
        self, problem: Problem, layers: list[LayerTerms], signal: Tensor, distance: Distance, weights: Weights
    ) -> None:
        self.problem, self.layers, self.signal = problem, layers, signal
        by_weight = {layer.weight: layer for layer in layers}
        observed = [
            by_weight[name].arranged(tensor) if name in by_weight else tensor
            for name, tensor in zip(problem.names, problem.observed, strict=True)
        ]
        self.pull: Pull = pull_of(distance, observed, weights)
        # runs of channels are what the fast convolutions copy
        wide = any(isinstance(layer, WinogradTerms) for layer in layers)
        self.memory_format = torch.channels_last if wide else torch.contiguous_format

    def evaluate(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """(R, 1, *shape) candidates to (R,) distances and their gradients."""
        x = inputs.detach().flatten(0, 1)
        x = x.contiguous(memory_format=self.memory_format if x.dim() == 4 else torch.contiguous_format)
        x.requires_grad_()
        try:
            with self._recording():
                logits = self.problem.model(x)
            used = [layer for layer in self.layers if layer.used]
            loss = (logits * self.signal).sum()
            deltas = torch.autograd.grad(loss, [layer.output for layer in used], retain_graph=True)
            for layer, delta in zip(used, deltas, strict=True):
                layer.receive(delta)
            values = torch.stack([self._inject(used, restart) for restart in range(len(x))])
            # the logits themselves: so every layer is passed on the way, those that add their terms there too
            roots = [(logits, torch.zeros_like(logits)), *(root for layer in used for root in layer.roots())]
            gradient = torch.autograd.grad([a for a, _ in roots], x, [g for _, g in roots])[0]
        finally:
            for layer in self.layers:
                layer.forget()
        return values, gradient.reshape(inputs.shape).contiguous()

    def _inject(self, used: list[LayerTerms], restart: int) -> Tensor:
        """The distance of one restart; its layers keep what they add to the gradient."""
        wanted, found = set(self.problem.names), {}
        for layer in used:
            if layer.weight in wanted:
                found[layer.weight] = layer.weight_gradient(restart)
            if layer.bias in wanted:
                found[layer.bias] = layer.bias_gradient(restart)
        for name in wanted - found.keys():
            found[name] = torch.zeros_like(self.problem.model.get_parameter(name))
        value, pull = self.pull([found[name] for name in self.problem.names])
        by_name = dict(zip(self.problem.names, pull, strict=True))
        for layer in used:
            if layer.weight in wanted:
                layer.inject(restart, by_name[layer.weight])
        return value

    @contextmanager
    def _recording(self) -> Iterator[None]:
        with ExitStack() as stack:
            for layer in self.layers:
                stack.enter_context(_watched(layer))
            for module in self.problem.model.modules():
                if getattr(module, "inplace", False) is True:  # would overwrite what a layer put out
                    stack.enter_context(_attribute(module, "inplace", False))
            for parameter in self.problem.model.parameters():
                if parameter.requires_grad:  # autograd is to compute no weight gradients of its own
                    stack.callback(parameter.requires_grad_, True)
                    parameter.requires_grad_(False)
            yield


@contextmanager
def _attribute(module: nn.Module, name: str, value: object) -> Iterator[None]:
    """An attribute of the module itself, hiding its class's for a while."""
    before = dict(vars(module))
    vars(module)[name] = value
    try:
        yield
    finally:
        if name in before:
            vars(module)[name] = before[name]
        else:
            del vars(module)[name]


@contextmanager
def _watched(layer: LayerTerms) -> Iterator[None]:
    def saw(_name: str, _module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        layer.saw(args[0], output)

    with ExitStack() as stack:
        if layer.forward is not None:
            stack.enter_context(_attribute(layer.module, "forward", layer.forward))
        stack.enter_context(hooked({"": layer.module}, after=saw))
        yield


def _agrees(problem: Problem, distance: Distance, weights: Weights, inputs: Tensor) -> bool:
    """Compare with double backprop of the same surrogate loss: at the start, and far away.

    Both places go through the engine together, which also tells whether restarts leave each other alone.
    With torch's own convolutions: at a kink, rounding in another way may fall to the other side.
    """
    engine = _engine(problem, distance, weights, winograd=False)
    assert engine is not None
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(inputs.shape, generator=generator).to(inputs) * problem.unit
    places = torch.cat([inputs, problem.centre + FAR * noise])
    try:
        values, gradients = engine.evaluate(places)
        for x, value, fast in zip(places, values, gradients, strict=True):
            expected_value, slow = _by_double_backprop(engine, problem, distance, weights, x)
            same = torch.allclose(value, expected_value, rtol=AGREEMENT, atol=1e-6)
            if not same or (fast - slow).norm() > AGREEMENT * slow.norm():
                return False
    except (RuntimeError, NotImplementedError):
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
