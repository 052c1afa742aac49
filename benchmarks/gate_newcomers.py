"""Servers that are not in the catalogue: each crafts in a way of its own, and reads in a way of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seepage import Attack
from seepage.attacks import ATTACKS
from seepage.core.errors import NotApplicable
from seepage.core.types import Crafted, Exchange, Grant, Knowledge, Reconstruction
from seepage.models.hooks import layer_input
from seepage.protocol import training_mode

ROW = 1e-9
"""Rows whose bias gradient is smaller are not divided."""


class Newcomer(Attack):
    """One crafted model, and one way to read what comes back."""

    requires = frozenset({Grant.CRAFT_WEIGHTS})

    def craft(self, model: nn.Module, history: Sequence[Exchange], known: Knowledge) -> Crafted | None:
        if history:
            return None
        sent = copy.deepcopy(model)
        with torch.no_grad(), training_mode(sent, False):
            self.change(sent, known)
        return Crafted(sent)

    def change(self, model: nn.Module, known: Knowledge) -> None:
        raise NotImplementedError

    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        shown = self.read(exchanges[0], known)
        shape = known.input.shape
        values = known.input.to_raw(shown.reshape(-1, *shape))
        low, high = known.input.value_range or (-torch.inf, torch.inf)
        return Reconstruction(values=values.clamp(low, high))

    def read(self, exchange: Exchange, known: Knowledge) -> Tensor:
        raise NotImplementedError


def kinds(model: nn.Module, kind: type[nn.Module]) -> list[tuple[str, Any]]:
    return [(name, m) for name, m in model.named_modules() if isinstance(m, kind)]


def public(known: Knowledge) -> Tensor:
    assert known.auxiliary is not None
    return known.auxiliary.inputs


def divided(exchange: Exchange, name: str) -> Tensor:
    """(m, D) rows of a layer's gradient over their biases'."""
    rows, bias = (exchange.update.tensors[f"{name}.{part}"] for part in ("weight", "bias"))
    used = bias.abs() > ROW * bias.abs().max()
    return (rows.flatten(1)[used] / bias[used, None]).detach()


def rare(responses: Tensor, batch: float) -> Tensor:
    """(N,) by column of (public, N): thresholds that about one of `batch` examples is above."""
    levels = torch.linspace(1 - 2.0 / batch, 1 - 0.3 / batch, responses.shape[1])
    return torch.stack([torch.quantile(column, q) for column, q in zip(responses.T, levels, strict=True)])


class Biases(Newcomer):
    """Leaves every weight and moves the first biases to thresholds; `where`: a dense layer or a convolution
    that covers the whole picture."""

    def __init__(self, size: int, where: type[nn.Module] = nn.Linear) -> None:
        self.size, self.where = size, where

    def check(self, model: nn.Module, known: Knowledge) -> None:
        found = kinds(model, self.where)
        first = found[0][1] if found else None
        values = int(torch.tensor(known.input.shape).prod())
        fits = first is not None and first.weight[0].numel() == values and first.bias is not None
        if not fits or not first.weight.requires_grad:
            raise NotApplicable("no such layer reads the whole input.")

    def change(self, model: nn.Module, known: Knowledge) -> None:
        _, layer = kinds(model, self.where)[0]
        seen = public(known).flatten(1) @ layer.weight.flatten(1).T
        layer.bias.copy_(-rare(seen, self.size))

    def read(self, exchange: Exchange, known: Knowledge) -> Tensor:
        return divided(exchange, kinds(exchange.broadcast.model, self.where)[0][0])


class Statistics(Newcomer):
    """Leaves all weights and biases: the running mean of a batch norm behind the first layer is the trap."""

    def __init__(self, size: int) -> None:
        self.size = size

    def check(self, model: nn.Module, known: Knowledge) -> None:
        norms, dense = kinds(model, nn.BatchNorm1d), kinds(model, nn.Linear)
        if not norms or known.input.vocabulary or dense[0][1].bias is None:
            raise NotApplicable("no batch norm behind a dense layer.")

    def change(self, model: nn.Module, known: Knowledge) -> None:
        norm = kinds(model, nn.BatchNorm1d)[0][1]
        first = kinds(model, nn.Linear)[0][1]
        norm.running_mean.copy_(rare(first(public(known).flatten(1)), self.size))

    def read(self, exchange: Exchange, known: Knowledge) -> Tensor:
        return divided(exchange, kinds(exchange.broadcast.model, nn.Linear)[0][0])


class Later(Newcomer):
    """The first layer passes the main components of the input on, the second one holds the thresholds."""

    def __init__(self, size: int) -> None:
        self.size = size

    def check(self, model: nn.Module, known: Knowledge) -> None:
        dense = kinds(model, nn.Linear)
        reads = int(torch.tensor(known.input.shape).prod())
        if len(dense) < 3 or dense[0][1].in_features != reads or any(d.bias is None for _, d in dense):
            raise NotApplicable("three dense layers are needed.")

    def change(self, model: nn.Module, known: Knowledge) -> None:
        first, second = (layer for _, layer in kinds(model, nn.Linear)[:2])
        flat = public(known).flatten(1)
        main = torch.linalg.svd(flat - flat.mean(0), full_matrices=False).Vh
        count = min(len(main), first.out_features)
        first.weight.zero_()
        first.weight[:count] = main[:count]
        first.bias.fill_(float(4 * flat.norm(dim=1).max()))  # far inside the linear part
        second.bias.copy_(-rare(first(flat) @ second.weight.T, self.size))

    def read(self, exchange: Exchange, known: Knowledge) -> Tensor:
        (_, first), (name, _) = kinds(exchange.broadcast.model, nn.Linear)[:2]
        main, mean = first.weight.detach(), public(known).flatten(1).mean(0)
        parts = divided(exchange, name) - first.bias.detach()
        back: Tensor = parts @ main + mean - (mean @ main.T) @ main
        return back


class Adapter(Newcomer):
    """Rows of a low-rank adapter, each behind one neuron that few examples fire: directions, no lengths."""

    def __init__(self, size: int) -> None:
        self.size = size

    def check(self, model: nn.Module, known: Knowledge) -> None:
        if not hasattr(model, "down"):
            raise NotApplicable("no adapter.")

    def change(self, model: nn.Module, known: Knowledge) -> None:
        down, up, base = model.down, model.up, model.base
        rank = down.out_features
        down.weight.zero_()
        up.weight.zero_()
        up.weight[:rank] = torch.eye(rank)
        base.bias.copy_(-rare(public(known).flatten(1) @ base.weight.T, self.size))

    def read(self, exchange: Exchange, known: Knowledge) -> Tensor:
        rows = exchange.update.tensors["down.weight"]
        rows = rows[rows.abs().amax(dim=1) > 0]
        signs = rows.gather(1, rows.abs().argmax(dim=1, keepdim=True))
        return (rows / signs).detach()


class Graded(Newcomer):
    """One class sends back a thousand times less than another one, and both far more than all others: what
    is left of a sum, once its largest part is known to a grey step, is the next one."""

    def __init__(self, size: int) -> None:
        self.size = size

    def check(self, model: nn.Module, known: Knowledge) -> None:
        dense = kinds(model, nn.Linear)
        reads = int(torch.tensor(known.input.shape).prod())
        fits = dense and dense[0][1].in_features == reads and dense[0][1].bias is not None
        if known.input.num_classes < 4 or not fits or not dense[0][1].weight.requires_grad:
            raise NotApplicable("four classes and a first dense layer are needed.")

    def change(self, model: nn.Module, known: Knowledge) -> None:
        head = kinds(model, nn.Linear)[-1][1]
        head.weight.mul_(1e-6)
        way = torch.randn(head.in_features, generator=torch.Generator().manual_seed(1))
        head.weight[0], head.weight[1] = way, 1e-3 * way
        head.bias[0], head.bias[1] = -25.0, -10.0

    def read(self, exchange: Exchange, known: Knowledge) -> Tensor:
        name = kinds(exchange.broadcast.model, nn.Linear)[0][0]
        rows, bias = (exchange.update.tensors[f"{name}.{part}"].double() for part in ("weight", "bias"))
        joint = torch.cat([rows, bias[:, None]], dim=1)
        top = joint[bias.abs().argmax()]
        first = torch.cat([(top[:-1] / top[-1] * 255).round() / 255, torch.ones(1)])
        left = joint - (joint @ first / first.square().sum())[:, None] * first
        rest = torch.linalg.svd(left, full_matrices=False).Vh[0]
        blank = rest[:-1][first[:-1] > 0.5]
        share = -(blank / first[:-1][first[:-1] > 0.5]).median()  # the second one is dark in most places
        second = rest + share * first
        return torch.stack([first[:-1], second[:-1] / second[-1]]).float()


class Partner(Newcomer):
    """A class with two examples is fished, one of which the server knows: the other is what is left."""

    def __init__(self, size: int, mine: Tensor | None = None, label: int = 0) -> None:
        self.mine, self.label = mine, label

    def check(self, model: nn.Module, known: Knowledge) -> None:
        dense = kinds(model, nn.Linear)
        reads = int(torch.tensor(known.input.shape).prod())
        fits = dense and dense[0][1].in_features == reads and dense[0][1].bias is not None
        if self.mine is None or not fits or not dense[0][1].weight.requires_grad:
            raise NotApplicable("no class has two examples, or no layer reads the input.")

    def change(self, model: nn.Module, known: Knowledge) -> None:
        head = kinds(model, nn.Linear)[-1][1]
        kept = head.weight[self.label].clone()
        head.weight.zero_()
        head.weight[self.label] = kept
        head.bias.zero_()
        head.bias[self.label] = -30.0

    def read(self, exchange: Exchange, known: Knowledge) -> Tensor:
        assert self.mine is not None
        name = kinds(exchange.broadcast.model, nn.Linear)[0][0]
        seen = divided(exchange, name)
        mine = self.mine.flatten()
        off = (seen - mine).norm(dim=1)
        way = (seen - mine)[off.argmax()]
        steps = torch.linspace(1, 8, 141)  # how far behind the mean the other one lies
        return mine + steps[:, None] * way


class Silent(Newcomer):
    """The last convolution's ReLU is silent for all but the brightest answer; a search fits what is left."""

    def __init__(self, size: int) -> None:
        self.size = size

    def check(self, model: nn.Module, known: Knowledge) -> None:
        convs = kinds(model, nn.Conv2d)
        if len(kinds(model, nn.Linear)) != 1 or len(convs) < 2 or not kinds(model, nn.ReLU):
            raise NotApplicable("no pooled network with ReLUs.")

    def change(self, model: nn.Module, known: Knowledge) -> None:
        name, last = kinds(model, nn.Conv2d)[-1]
        last.weight.copy_(last.weight[:1].expand_as(last.weight).clone())
        last.bias.zero_()
        maps = layer_input(model, name, public(known))
        shape = (-1, last.in_channels, *[int((maps.shape[1] / last.in_channels) ** 0.5)] * 2)
        peaks = last(maps.reshape(shape))[:, 0].amax(dim=(1, 2))
        last.bias.fill_(-float(torch.quantile(peaks, 1 - 1.0 / self.size)))

    def read(self, exchange: Exchange, known: Knowledge) -> Tensor:
        search = ATTACKS["inverting_gradients"](steps=300, budget=10.0, counts=[1])
        from dataclasses import replace

        alone = replace(exchange, update=replace(exchange.update, num_examples=1))
        found = search.run([alone], known).values
        return known.input.to_model(found)


def partner(setting: Any) -> Newcomer:
    labels = setting.batch.labels
    counts = torch.bincount(labels, minlength=setting.spec.num_classes)
    two = (counts == 2).nonzero().flatten()
    if not len(two) or labels.dim() != 1:
        return Partner(setting.size)
    label = int(two[0])
    return Partner(setting.size, setting.batch.inputs[labels == label][0], label)


NEWCOMERS: dict[str, Callable[[Any], Newcomer]] = {
    "biases": lambda s: Biases(s.size),
    "convolution's biases": lambda s: Biases(s.size, nn.Conv2d),
    "statistics": lambda s: Statistics(s.size),
    "later layer": lambda s: Later(s.size),
    "adapter": lambda s: Adapter(s.size),
    "graded": lambda s: Graded(s.size),
    "partner": partner,
    "silent": lambda s: Silent(s.size),
}
