"""FedAvg played through: the client's local training repeated on the server's own inputs, for given shares.

On an untrained network all inputs look alike to the last layer, so a replay moves the weights much as the
client did, also where steps swing; the right shares of the classes make it end where the client ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call

from seepage.core.types import LocalTraining
from seepage.labels.gradient import SUM_LOSSES, step_sizes, step_weights
from seepage.models.hooks import watching
from seepage.models.layers import LinearLayer
from seepage.protocol import trainable, training_mode


@dataclass(frozen=True, kw_only=True)
class Stage:
    """All that a replay needs besides the class shares."""

    model: nn.Module
    layer: LinearLayer
    inputs: Tensor
    """(m, *shape): stand-ins for the client's examples."""
    labels: Tensor | None
    """(m,) their classes, where they are auxiliary data; None: every one stands for all classes."""
    local: LocalTraining
    loss: str
    num_examples: int
    """Of one client."""
    sent: Mapping[str, Tensor]
    """The client's delta of every parameter."""
    entry: LinearLayer | None = None
    """A dense layer that the input enters as it is, if there is one."""
    force: Mapping[str, Tensor] = field(default_factory=dict)
    """Added to the gradient of every step: what the stand-ins' own gradients lack of the client's."""

    @property
    def length(self) -> float:
        """What a gradient that is the same at every step is multiplied by on its way to the delta."""
        weights = step_weights(len(self.scales), self.local.momentum)
        return self.local.lr * sum(w * s for w, s in zip(weights, self.scales, strict=True))

    @property
    def rows(self) -> list[int]:
        """Which of the client's mini-batches each step takes; reshuffled ones come only once."""
        steps = len(self.scales)
        in_epoch = -(-self.num_examples // (self.local.batch_size or self.num_examples))
        return [t if self.local.shuffle_seed is not None else t % in_epoch for t in range(steps)]

    @property
    def scales(self) -> list[int]:
        """What each step multiplies the mean gradient by: 1, or its number of examples for a summed loss."""
        sizes = step_sizes(self.local, self.num_examples)
        return sizes if self.loss in SUM_LOSSES else [1] * len(sizes)

    def features(self, state: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """(m, d) what the last layer is given under these parameters."""
        with training_mode(self.model, False), watching(self.model, self.layer.name) as seen:
            functional_call(self.model, dict(state), (inputs,))
        return seen[0]


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """Where a replay ended, for a softmax over C classes, and how its steps hang on the shares."""

    weight: Tensor
    """(C, d) delta of the last layer."""
    bias: Tensor | None
    """(C,)"""
    features: Tensor
    """(T, d) mean feature before each step."""
    start: Tensor
    """(m, d) features of the stand-ins before the first step."""
    slopes: Tensor
    """(T, C, R C): what each step added to the bias, by the shares, the hidden layers held as they were."""
    moved: Mapping[str, Tensor]
    """The delta of every parameter."""
    swing: float
    """Largest growth of a change of the shares in the error of a step: above 1, steps overshoot."""


def replay(stage: Stage, shares: Tensor) -> Replayed:
    """Takes the client's local steps; `shares` (R, C) are those of the classes in each mini-batch."""
    model, layer, local = stage.model, stage.layer, stage.local
    received = {name: p.detach() for name, p in trainable(model).items()}
    state = {name: p.clone().requires_grad_() for name, p in received.items()}
    buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
    optimiser = torch.optim.SGD(
        state.values(), lr=local.lr, momentum=local.momentum, weight_decay=local.weight_decay
    )
    count, single = len(stage.inputs), layer.out_features == 1
    units = torch.eye(shares.shape[1]).to(shares)
    bearers = torch.stack([stand_in_targets(stage.labels, count, unit).sum(1) for unit in units])  # (C, m)
    slopes = _Slopes(local, bearers, with_bias=layer.bias is not None, single=single)
    features: list[Tensor] = []
    with training_mode(model, local.batch_norm == "train"), watching(model, layer.name) as seen:
        for row, scale in zip(stage.rows, stage.scales, strict=True):
            targets = stand_in_targets(stage.labels, count, shares[row])  # (m, C)
            logits = functional_call(model, {**state, **buffers}, (stage.inputs,))
            logits = two_logits(logits) if single else logits
            loss = -scale * (targets.to(logits) * logits.log_softmax(1)).sum()
            gradients = torch.autograd.grad(loss, list(state.values()), allow_unused=True)
            features.append(seen.pop().detach().double())  # not kept: its graph would be, too
            slopes.add(logits.detach().double().softmax(1), shares, row, features[-1], scale)
            for (name, parameter), gradient in zip(state.items(), gradients, strict=True):
                parameter.grad = gradient
                if gradient is not None and name in stage.force:
                    parameter.grad = gradient + scale * stage.force[name]
            optimiser.step()
    moved = {name: (p - received[name]).detach() for name, p in state.items()}
    weight = moved[layer.weight].double()
    bias = None if layer.bias is None else moved[layer.bias].double()
    if single:
        weight, bias = torch.cat([-weight, weight]), None if bias is None else torch.cat([-bias, bias])
    return Replayed(
        weight=weight,
        bias=bias,
        features=torch.stack(slopes.means),
        start=features[0],
        slopes=slopes.to_end(),
        moved=moved,
        swing=slopes.swing,
    )


def stand_in_targets(labels: Tensor | None, count: int, shares: Tensor) -> Tensor:
    """(count, C) that sum to 1 like the shares: each stand-in bears all classes, or its own if it has one.

    >>> stand_in_targets(torch.tensor([0, 0, 1]), 3, torch.tensor([0.5, 0.2, 0.3]))
    tensor([[0.2500, 0.0000, 0.1000],
            [0.2500, 0.0000, 0.1000],
            [0.0000, 0.2000, 0.1000]])
    """
    even = shares.expand(count, -1) / count
    if labels is None:
        return even
    own = torch.nn.functional.one_hot(labels, len(shares)).to(shares)
    return torch.where(own.sum(0) > 0, own * shares / own.sum(0).clamp(min=1), even)


def two_logits(logits: Tensor) -> Tensor:
    """A single logit z under binary cross-entropy is a softmax over the logits (0, z)."""
    column = logits.reshape(len(logits), 1)
    return torch.cat([torch.zeros_like(column), column], dim=1)


class _Slopes:
    """d error_t / d shares of every step, through the last layer alone.

    error_t = mean_i p_i - shares_t, and the errors of the steps u < t have moved the logits before step t:
    dz_t = -lr sum_u w(t, u) (f_u . f_t + 1) d error_u, with w(t, u) as in `step_weights`.
    """

    def __init__(self, local: LocalTraining, bearers: Tensor, *, with_bias: bool, single: bool) -> None:
        self.local, self.bearers, self.with_bias, self.single = local, bearers, with_bias, single
        self.means: list[Tensor] = []
        self.steps: list[Tensor] = []
        self.swing = 0.0

    def add(self, p: Tensor, shares: Tensor, row: int, features: Tensor, scale: int) -> None:
        rows, classes = shares.shape
        mass = shares[row] @ self.bearers  # (m,)
        spread = torch.diag(mass @ p) - (p * mass[:, None]).T @ p  # (C, C): d mean p / d logits
        mean = mass @ features
        slope = torch.zeros(classes, rows, classes).to(p)
        slope[:, row] = (self.bearers @ p).T - torch.eye(classes).to(p)  # column k: mean p on class k
        slope = slope.flatten(1)
        if self.steps:
            products = torch.stack(self.means) @ mean + float(self.with_bias)
            moved = torch.einsum("t,tij->ij", self._weights() * products, torch.stack(self.steps))
            if self.single:
                moved = moved * torch.tensor([[0.0], [1.0]]).to(moved)  # the constant logit stays
            slope = slope - self.local.lr * spread @ moved
        common = slope.reshape(classes, rows, classes).sum(1)  # all mini-batches changed alike
        finite = (common - common.mean(1, keepdim=True)).nan_to_num()
        self.swing = max(self.swing, float(torch.linalg.matrix_norm(finite, 2)))
        self.means.append(mean)
        self.steps.append(scale * slope)

    def _weights(self) -> Tensor:
        return torch.tensor(step_weights(len(self.steps), self.local.momentum)).to(self.steps[0])

    def to_end(self) -> Tensor:
        return -self.local.lr * self._weights()[:, None, None] * torch.stack(self.steps)
