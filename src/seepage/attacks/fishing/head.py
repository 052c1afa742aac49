"""Crafting a classification layer that catches few examples, and reading what its gradient says of them.

Wen et al. 2022, Sections 3.1 and 3.2. Nothing but the last linear layer is changed, so the features f of an
example are the same in every query. All rows but the target's are zero: only the target's logit depends on
the features, and an example enters the gradient with weight p_c - [y = c].
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from seepage.core.errors import NotApplicable
from seepage.core.types import Exchange, InputSpec, Knowledge, UpdateKind
from seepage.models.choice import named_layer
from seepage.models.hooks import watching
from seepage.models.layers import output_layer, trace_linear_layers
from seepage.models.probes import dummy_inputs, run_model
from seepage.protocol import trainable, training_mode


@dataclass(frozen=True, kw_only=True)
class Head:
    """The classification layer: logits = W f + b."""

    name: str
    weight: str
    bias: str | None
    features: int
    classes: int


@dataclass(frozen=True, kw_only=True)
class HeadReading:
    """Sums over a batch of (p_c - [y = c]), the weight with which each example was caught."""

    weight: float | None
    """Sum of the weights: minus the number caught. None where the layer has no bias."""
    features: Tensor
    """(m,) sum of weight times feature, float64."""
    others_bias: Tensor
    """(K,) n times the bias gradient, the target's entry included; empty without a bias."""
    others_weight: Tensor
    """(K, m) n times the weight gradient."""


def find_head(model: nn.Module, spec: InputSpec, name: str | None = None) -> Head:
    """The last linear layer with one output a class, or the named one.

    >>> spec = InputSpec(modality="tabular", shape=(4,), num_classes=3)
    >>> find_head(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), spec).weight
    '2.weight'
    """
    layers = trace_linear_layers(model, spec)
    found = output_layer(layers, num_classes=spec.num_classes) if name is None else named_layer(layers, name)
    if found.out_features < 2:
        raise NotApplicable(
            "fishing needs a classification layer with one output for each class, and this model has a "
            "single logit: use a model with two outputs."
        )
    if not found.per_example or found.weight not in trainable(model):
        raise NotApplicable(
            f"layer '{found.name}' is applied several times to one example or is frozen, so its gradient "
            "does not count examples: name the classification layer with layer = '...'."
        )
    return Head(
        name=found.name,
        weight=found.weight,
        bias=found.bias if found.bias in trainable(model) else None,
        features=found.in_features,
        classes=found.out_features,
    )


def check_makes_logits(model: nn.Module, spec: InputSpec, head: Head) -> None:
    """With a layer of zeros the logits must be zeros: otherwise something follows the layer."""
    silent = copy.deepcopy(model)
    layer = silent.get_submodule(head.name)
    with torch.no_grad(), training_mode(silent, False):
        for parameter in layer.parameters():
            parameter.zero_()
        logits = run_model(silent, dummy_inputs(spec, 2, like=model))
    if logits.shape[-1] != head.classes or bool(logits.any()):
        raise NotApplicable(
            f"layer '{head.name}' does not make the model's logits (something follows it), so a crafted "
            "layer does not decide who is caught: name the classification layer with layer = '...'."
        )


def check_batch_independence(model: nn.Module, known: Knowledge, *, several_queries: bool) -> None:
    """Fishing needs each example's features to be its own; batch statistics mix them (cosine .18 to .62)."""
    if known.local is None or known.local.batch_norm != "train":
        return
    modules = list(model.modules())
    if any(isinstance(module, _BatchNorm) for module in modules):
        raise NotApplicable(
            "clients run BatchNorm in train mode, so every example's gradient depends on the whole batch and "
            "none can be fished by itself: use batch_norm = 'eval' or a model without BatchNorm."
        )
    if several_queries and any(isinstance(m, _DropoutNd) and m.p > 0 for m in modules):
        raise NotApplicable(
            "clients train with dropout, so the same example has other features in each query and cuts "
            "cannot be compared: this attack needs a model without dropout, or batch_norm = 'eval'."
        )


def far_away(model: nn.Module, head: Head) -> float:
    """A logit that no feature can make up for, and whose loss is still a finite number."""
    return math.sqrt(torch.finfo(model.get_parameter(head.weight).dtype).max)


def class_head(
    model: nn.Module, head: Head, target: int, *, alpha: float, loud: float = 1.0, keep: float = 0.0
) -> nn.Module:
    """Section 3.1 with all logits lowered by alpha, which no softmax notices: other rows and their biases are
    0 in place of alpha, and the target's bias is -alpha, so that only the target class has any gradient.

    A weight delta loses the digits that a large weight has no room for: at b = 1000 a step of 1e-5 is lost
    in single precision. Of the zeros nothing is lost, and the target's own delta is minus their sum.

    loud: times the target's row, and with it every gradient behind the layer.
    keep: share of the layer's energy that the other rows keep between them, in place of none.

    Without a bias alpha * u.f with u = 1/sqrt(m) is taken from the target's logit: for non-negative features
    that are not all zero this acts like a bias, and a target example's gradient is that of
    (alpha * u - W_c).f.
    """
    crafted = copy.deepcopy(model)
    weight = crafted.get_parameter(head.weight)
    kept = loud * weight.detach()[target].clone()
    with torch.no_grad():
        others = weight.square().sum() - weight[target].square().sum()
        smaller = (keep / (1 - keep) * kept.square().sum() / others.clamp_min(1e-30)).sqrt()
        weight.copy_(smaller * weight if keep else torch.zeros_like(weight))
        weight[target] = kept if head.bias is not None else kept - alpha / math.sqrt(head.features)
        if head.bias is not None:
            bias = crafted.get_parameter(head.bias)
            bias.zero_()
            bias[target] = -alpha
    return crafted


def cut_head(
    model: nn.Module, head: Head, target: int, *, direction: Tensor, beta: float, theta: float
) -> nn.Module:
    """Section 3.2: p_c = sigmoid(beta * (w.f - theta)). An infinite theta catches everyone, or nobody.

    b_c needs the ln(K - 1) that the paper leaves out: K - 1 zero logits stand against the target's.
    """
    assert head.bias is not None
    crafted = copy.deepcopy(model)
    weight = crafted.get_parameter(head.weight)
    with torch.no_grad():
        weight.zero_()
        weight[target] = beta * direction.to(weight)
        bias = crafted.get_parameter(head.bias)
        bias.zero_()
        if math.isinf(theta):
            bias[target] = -math.copysign(far_away(model, head), theta)
        else:
            bias[target] = -beta * theta + math.log(head.classes - 1)
    return crafted


def single_example_model(model: nn.Module, head: Head, target: int, direction: Tensor) -> nn.Module:
    """The model under which a fished gradient is that of one example with label `target`: -grad(w.f).

    Every input is caught by it, wherever it lies: under the fishing head itself a candidate above the cut
    has no gradient, and an attack that optimises would never get it back.
    """
    theta = math.inf  # caught, however large the candidate's score
    return cut_head(model, head, target, direction=direction, beta=1.0, theta=theta)


def dense_direction(features: int, *, seed: int) -> Tensor:
    """(m,) random unit vector: along one coordinate, an image whose feature is exactly 0 has no gradient."""
    drawn = torch.randn(features, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(drawn, dim=0)


def sent_gradient(
    exchange: Exchange, known: Knowledge, names: Iterable[str] | None = None
) -> Mapping[str, Tensor]:
    """The update as a sum of single examples' gradients (n times the mean), by parameter name.

    A FedAvg delta of one local step is one gradient; after several the weights have moved in between.
    """
    update, local = exchange.update, known.local
    count = update.num_examples
    assert count is not None
    # Clients' sums of losses are averaged by an aggregator; their means, weighted by examples, are not.
    factor = float(len(exchange.clients) if known.loss.endswith("_sum") else count)
    wanted = list(update.tensors if names is None else names)
    if update.kind is UpdateKind.GRADIENT:
        return {name: factor * update.tensors[name].detach() for name in wanted}
    if local is None:
        raise NotApplicable(
            "clients send weight deltas and the learning rate is not known, so caught examples cannot be "
            "counted: grant = ['local_training']."
        )
    each = max(1, count // len(exchange.clients))
    if getattr(exchange.secret, "mean_of_steps", False):
        factor /= local.num_steps(each)
    elif getattr(exchange.secret, "dying", None) is None:  # of a network that dies one step is sent
        check_single_step(known, each)
    model = exchange.broadcast.model
    result = {}
    for name in wanted:
        gradient = update.tensors[name].detach() / -local.lr
        if local.weight_decay:
            gradient = gradient - local.weight_decay * model.get_parameter(name).detach()
        result[name] = factor * gradient
    return result


def check_single_step(known: Knowledge, examples: int) -> None:
    """NotApplicable after several local steps: after the first one the crafted layer is no longer there."""
    if known.local is not None and known.local.num_steps(examples) > 1:
        raise NotApplicable(
            f"clients take {known.local.num_steps(examples)} local steps, and the first one already moves "
            "the crafted layer by a large step: this attack needs FedSGD, or FedAvg with a single local "
            "step; class_fishing reads several, and so do cuts where each example is in more than one."
        )


def read_head(exchange: Exchange, known: Knowledge, head: Head, target: int) -> HeadReading:
    """Caught weight and feature sum. The rows of a softmax gradient sum to zero, so minus the sum of the
    other rows is the target's; those rows are 0 in a crafted head, and the delta of a zero is exact where
    the delta of a large weight is rounded away.
    """
    names = [head.weight] if head.bias is None else [head.weight, head.bias]
    sums = sent_gradient(exchange, known, names)
    weight = sums[head.weight].double().cpu()  # (K, m)
    bias = weight.new_zeros(0) if head.bias is None else sums[head.bias].double().cpu()
    others = torch.arange(head.classes) != target
    return HeadReading(
        weight=None if head.bias is None else float(-bias[others].sum()),
        features=-weight[others].sum(dim=0),
        others_bias=bias,
        others_weight=weight,
    )


def needs_bias(head: Head) -> None:
    """NotApplicable without a bias: only class fishing can do without."""
    if head.bias is None:
        raise NotApplicable(
            f"the classification layer '{head.name}' has no trained bias, so a cut cannot be moved and those "
            "caught cannot be counted: class_fishing still works, or choose a model with a bias there."
        )


def head_features(model: nn.Module, head: Head, inputs: Tensor) -> Tensor:
    """(n, m) what reaches the classification layer for each of the server's own examples, float64."""
    with torch.no_grad(), training_mode(model, False), watching(model, head.name) as seen:
        run_model(model, inputs)
    return seen[0].double().cpu()


def class_counts(reading: HeadReading, target: int, examples: int) -> Tensor | None:
    """(K,) examples of each class, from a head that gives the target class no probability.

    n * grad_b[o] = n / (K - 1) - N_o for the other classes: one query tells all labels.
    """
    classes = len(reading.others_bias)
    if reading.weight is None:
        return None
    counts = examples / (classes - 1) - reading.others_bias
    counts[target] = -reading.weight
    return counts


def class_pattern(reading: HeadReading, target: int) -> Tensor:
    """(K - 1, m): minus each other class's sum of features, up to a term that all rows share.

    n * grad_W[o] = (1 - p_c)-weighted features / (K - 1) - sum of the features of class o. The first part is
    the same in every row and moves with the cut; the second does not, and tells one batch from another.
    """
    others = torch.arange(len(reading.others_weight)) != target
    rows = reading.others_weight[others]
    return rows - rows.mean(dim=0)


def one_class_pattern(everyone: Tensor, held: int, target: int, classes: int) -> Tensor:
    """`class_pattern` of a batch that holds one class only, from the sum (m,) of all its features."""
    rows = everyone.new_zeros(classes, len(everyone))
    rows[held] = -everyone
    rows = rows[torch.arange(classes) != target]
    return rows - rows.mean(dim=0)
