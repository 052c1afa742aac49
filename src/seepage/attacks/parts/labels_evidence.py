"""What label inference works from: the last layer's mean gradient, and the server's own probes.

Gradient and delta, mean and sum, softmax and single logit are all brought to one form here, so that the
methods see one thing only: the gradient of the *mean* loss of a softmax layer, in double precision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from seepage.attacks.parts.layers import (
    LinearLayer,
    dummy_inputs,
    evaluating,
    output_layer,
    run_model,
    trace_linear_layers,
)
from seepage.errors import DataError, NotApplicable
from seepage.types import Batch, Exchange, Knowledge, LocalTraining, UpdateKind

NOISE_PROBES = 256
PATH_PASSES = 2
MAX_STATES = 8
"""Weights along a client's local training at which the model is probed."""
MEAN_LOSSES = frozenset({"auto", "cross_entropy", "binary_cross_entropy"})
SUM_LOSSES = frozenset({"cross_entropy_sum"})


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The last layer at one state of the weights, and what it read from the server's own examples."""

    weight: Tensor
    """(C, d)"""
    bias: Tensor
    """(C,), zeros where the layer has none."""
    features: Tensor
    """(m, d)"""
    share: float
    """How much of the update was computed near this state; shares sum to 1."""

    def softmax(self, features: Tensor) -> Tensor:
        """(m, d) features to (m, C) probabilities."""
        return torch.softmax(features @ self.weight.T + self.bias, dim=1)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the server has of the last layer, for one softmax over C classes."""

    weight: Tensor
    """(C, d): the update as sent; `mean_gradient` gives it sign and scale."""
    bias: Tensor | None
    """(C,)"""
    probes: tuple[Probe, ...]
    """At the received weights; for deltas along the way from received to received + delta."""
    probe_labels: Tensor | None
    """(m,) classes of the probe examples, when they are auxiliary data."""
    notes: tuple[str, ...]

    @property
    def num_classes(self) -> int:
        return len(self.weight)

    def average(self, values: Iterable[Tensor]) -> Tensor:
        """Mean of one tensor per probe, weighted by the probes' shares."""
        pairs = zip(self.probes, values, strict=True)
        return torch.stack([probe.share * value for probe, value in pairs]).sum(0)

    def mean_prediction(self) -> Tensor:
        """(C,) mean softmax over the probe examples and the states of the weights."""
        return self.average(probe.softmax(probe.features).mean(0) for probe in self.probes)

    def bias_gradient(self, gradient: Gradient) -> Tensor:
        """grad_b; for a layer without bias the least-squares g in grad_W = g f̄^T, f̄ the probes' mean."""
        if gradient.bias is not None:
            return gradient.bias
        mean = self.average(probe.features.mean(0) for probe in self.probes)
        slope = gradient.weight @ mean / mean.square().sum().clamp(min=1e-30)
        return slope - slope.mean()


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """Mean gradient of the loss over `num_examples` examples."""

    weight: Tensor
    bias: Tensor | None
    num_examples: int


def gather_evidence(exchange: Exchange, known: Knowledge) -> Evidence:
    """Traces the broadcast model, checks the update against it, and probes the last layer."""
    model = exchange.broadcast.model
    layer = output_layer(trace_linear_layers(model, known.input), num_classes=known.input.num_classes)
    if not layer.per_example:
        raise NotApplicable(
            f"The last layer '{layer.name}' is applied at several positions of an example, so its gradient "
            "does not count examples: use a model with one output per example."
        )
    weight = _read(exchange.update.tensors, layer.weight, (layer.out_features, layer.in_features))
    bias = None if layer.bias is None else _read(exchange.update.tensors, layer.bias, (layer.out_features,))
    if not weight.any():
        raise NotApplicable(
            f"The update of the last layer '{layer.name}' is zero, so it carries no labels: the layer was "
            "frozen or its update was withheld."
        )
    inputs, labels, source = _probe_inputs(known, model)
    received: dict[str, Tensor] = {name: value.detach() for name, value in model.named_parameters()}
    delta = exchange.update.tensors if exchange.update.kind is UpdateKind.DELTA else {}

    def probes_at(path: list[tuple[float, float]]) -> tuple[Probe, ...]:
        return tuple(_probe(model, layer, _moved(received, delta, x), inputs, share) for x, share in path)

    single = layer.out_features == 1
    evidence = Evidence(
        weight=_two_rows(weight) if single else weight,
        bias=None if bias is None else _two_rows(bias) if single else bias,
        probes=probes_at([(0.0, 0.5), (1.0, 0.5)] if delta else [(0.0, 1.0)]),
        probe_labels=labels,
        notes=(source,),
    )
    n = exchange.update.num_examples
    if not delta or known.local is None or n is None or n < 1:
        return evidence
    for _ in range(PATH_PASSES):
        gradient = mean_gradient(evidence, exchange, known, n)
        counts = (evidence.mean_prediction() - evidence.bias_gradient(gradient)).clamp(min=0)
        path = _path(evidence.probes[0], counts / counts.sum(), exchange, known, n, single=single)
        evidence = replace(evidence, probes=probes_at(path))
    return evidence


def mean_gradient(evidence: Evidence, exchange: Exchange, known: Knowledge, num_examples: int) -> Gradient:
    """The update as the gradient of the mean loss over the `num_examples` examples it was made from."""
    summed = known.loss in SUM_LOSSES
    clients = max(1, len(exchange.clients))
    per_client = max(1, round(num_examples / clients))
    if exchange.update.kind is UpdateKind.GRADIENT:
        scale = float(per_client) if summed else 1.0
        return _scaled(evidence, 1 / scale, num_examples)
    if known.local is None:
        return _scaled(evidence, _scale_from_absent_classes(evidence, num_examples), num_examples)
    local = known.local
    sizes = step_sizes(local, per_client)
    weights = step_weights(len(sizes), local.momentum)
    total = sum(w * (size if summed else 1) for w, size in zip(weights, sizes, strict=True))
    gradient = _scaled(evidence, -1 / (local.lr * total), min(num_examples, clients * sum(sizes)))
    if not local.weight_decay:
        return gradient
    # each step added wd * w to the gradient, with the w of that step
    decay = local.weight_decay * len(sizes) / total if summed else local.weight_decay
    weight, bias = (
        gradient.weight - decay * evidence.average(p.weight for p in evidence.probes),
        gradient.bias,
    )
    if bias is not None:
        bias = bias - decay * evidence.average(p.bias for p in evidence.probes)
    return Gradient(weight=weight, bias=bias, num_examples=gradient.num_examples)


def step_weights(steps: int, momentum: float) -> list[float]:
    """How often the gradient of each local step enters the delta, in units of -lr.

    With v_t = mu v_{t-1} + g_t and w_{t+1} = w_t - lr v_t, step t of S enters sum_{j=0}^{S-t-1} mu^j times.

    >>> step_weights(3, 0.5)
    [1.75, 1.5, 1.0]
    """
    return [sum(momentum**j for j in range(steps - t)) for t in range(steps)]


def step_sizes(local: LocalTraining, num_examples: int) -> list[int]:
    """Examples in each local step; the last mini-batch of an epoch may be smaller.

    >>> step_sizes(LocalTraining(algorithm="fedavg", batch_size=8, epochs=2), 20)
    [8, 8, 4, 8, 8, 4]
    """
    size = num_examples if local.algorithm == "fedsgd" else local.batch_size or num_examples
    epoch = [min(size, num_examples - start) for start in range(0, num_examples, size)]
    steps = local.num_steps(num_examples)
    return (epoch * -(-steps // len(epoch)))[:steps]


def _scale_from_absent_classes(evidence: Evidence, num_examples: int) -> float:
    """Factor from a delta of unknown learning rate to the mean gradient.

    An absent class has grad_b[c] = mean_p[c] exactly, and every other class less. With n < C at least
    C - n classes are absent, whichever they are: they are those with the largest ratio grad_b / mean_p.
    """
    absent = evidence.num_classes - num_examples
    if evidence.bias is None or absent <= 0:
        raise NotApplicable(
            "The learning rate of local training is unknown, so the scale of the weight delta is too: grant "
            "`local_training` (inferring it takes fewer examples than classes and a layer with bias)."
        )
    ratio = (-evidence.bias / evidence.mean_prediction()).sort(descending=True).values[:absent].median()
    if ratio <= 0:
        raise NotApplicable(
            "The scale of the weight delta cannot be inferred, for no class looks absent: grant "
            "`local_training`."
        )
    return -1 / float(ratio)


def _scaled(evidence: Evidence, factor: float, num_examples: int) -> Gradient:
    bias = None if evidence.bias is None else evidence.bias * factor
    return Gradient(weight=evidence.weight * factor, bias=bias, num_examples=num_examples)


def _path(
    start: Probe, shares: Tensor, exchange: Exchange, known: Knowledge, n: int, *, single: bool
) -> list[tuple[float, float]]:
    """(fraction of the delta, share) of the states at which local training took its gradients.

    Steps shrink, or swing, as the bias fits the class shares, so the way is played through: the last
    layer alone, fed the probes' mean feature, takes the client's steps towards `shares`. Step t counts
    at the fraction reached before it, and as often as it enters the delta (`step_weights`).
    """
    assert known.local is not None
    local = known.local
    steps = local.num_steps(max(1, round(n / max(1, len(exchange.clients)))))
    mean = start.features.mean(0)
    logits = start.weight @ mean + start.bias
    # a step of size g in row c moves its logit by (|f|^2 + 1) g; a single logit's constant row stays
    reach = local.lr * (mean.square().sum() + float(start.bias.any()))
    sizes = step_sizes(local, max(1, round(n / max(1, len(exchange.clients)))))
    speed, moved, before = torch.zeros_like(logits), torch.zeros_like(logits), []
    for size in sizes:
        before.append(moved)
        error = torch.softmax(logits + moved, 0) - shares
        if single:
            error = error * torch.tensor([0.0, 1.0]).to(error)
        speed = local.momentum * speed + error * (size if known.loss in SUM_LOSSES else 1)
        moved = moved - reach * speed
    total = moved.square().sum().clamp(min=1e-30)
    fractions = (torch.stack(before) @ moved / total).clamp(0, 2)
    weights = torch.tensor(step_weights(steps, local.momentum)).to(fractions)
    chunks = zip(weights.chunk(MAX_STATES), fractions.chunk(MAX_STATES), strict=True)
    return [(float((w * f).sum() / w.sum()), float(w.sum() / weights.sum())) for w, f in chunks]


def _moved(received: Mapping[str, Tensor], delta: Mapping[str, Tensor], fraction: float) -> dict[str, Tensor]:
    """Received plus a part of the delta; parameters the client did not send stay as they were."""
    state = dict(received)
    for name in received.keys() & delta.keys():
        moved = fraction * _read(delta, name, tuple(received[name].shape))
        state[name] = received[name] + moved.to(received[name])
    return state


def _two_rows(row: Tensor) -> Tensor:
    """A single logit z under binary cross-entropy is a softmax over the logits (0, z).

    Its gradient in z is p_1 - y_1, and p_0 - y_0 = -(p_1 - y_1) gives the row of the constant logit.
    """
    return torch.cat([-row, row])


def _read(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    if name not in tensors:
        raise NotApplicable(
            f"The update holds no '{name}', the last layer's parameter: labels can be read only from an "
            "update that includes it."
        )
    tensor = tensors[name].detach().double()
    if tuple(tensor.shape) != shape:
        raise DataError(
            f"The update's '{name}' has shape {tuple(tensor.shape)} but the model's has {shape}: the update "
            "belongs to another model; pair it with the model it was computed from."
        )
    if not torch.isfinite(tensor).all():
        raise DataError(
            f"The update's '{name}' holds NaN or infinite values: local training diverged, lower its rate."
        )
    return tensor


def _probe_inputs(known: Knowledge, model: nn.Module) -> tuple[Tensor, Tensor | None, str]:
    if known.auxiliary is not None and len(known.auxiliary) > 0:
        batch: Batch = known.auxiliary
        device = dummy_inputs(known.input, 1, like=model).device
        note = f"Mean prediction measured on {len(batch)} auxiliary examples."
        return batch.inputs.to(device), batch.labels.to(device), note
    noise = dummy_inputs(known.input, NOISE_PROBES, like=model, seed=known.seed, model_units=known.normalised)
    kind = "random tokens" if not noise.is_floating_point() else "random noise"
    return noise, None, f"Mean prediction measured on {kind}, for there are no auxiliary data."


def _probe(
    model: nn.Module, layer: LinearLayer, state: Mapping[str, Tensor], inputs: Tensor, share: float
) -> Probe:
    """Features before and probabilities behind the last layer, without touching the broadcast model."""
    seen: list[Tensor] = []
    handle = model.get_submodule(layer.name).register_forward_hook(
        lambda module, args, output: seen.append(args[0].detach().double())
    )
    try:
        with torch.no_grad(), evaluating(model):
            output = run_model(lambda x: functional_call(model, dict(state), (x,)), inputs).double()
    finally:
        handle.remove()
    weight = state[layer.weight].detach().double()
    bias = torch.zeros_like(weight[:, 0]) if layer.bias is None else state[layer.bias].detach().double()
    if len(weight) == 1:
        weight, bias = torch.cat([weight * 0, weight]), torch.cat([bias * 0, bias])
        output = output.reshape(len(inputs), -1)
        output = torch.cat([output * 0, output], dim=1)
    probe = Probe(weight=weight, bias=bias, features=seen[0], share=share)
    expected = probe.softmax(probe.features)
    if output.shape != expected.shape or not torch.allclose(output.softmax(1), expected, atol=1e-3):
        raise NotApplicable(
            f"The model's output is not that of its last linear layer '{layer.name}', so that gradient "
            "is not prediction minus label: use a model that returns this layer's output as logits."
        )
    return probe
