"""Honest trainings to convergence: other families of networks, optimisers and what is done to weights after.

The small networks of `honest_models.py` were trained for a few epochs by SGD. What clients receive was more
often trained for long, with weight decay or Adam, normalised, pruned, quantised, distilled or fine-tuned.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from research.guard.honest_models import pruned
from seepage.core.types import InputSpec, Modality
from seepage.data import load_data

_EPOCHS = 20
_BATCH = 64
_SIDE, _CLASSES = 8, 10
"""Of the digits that come with scikit-learn."""


class Recurrent(nn.Module):
    """Reads a picture line by line."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], layers: int) -> None:
        super().__init__()
        self.rnn = kind(_SIDE, 48, layers, batch_first=True)
        self.head = nn.Linear(48, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.rnn(x.squeeze(1))[0][:, -1])
        return logits


class Attentive(nn.Module):
    """A transformer over the lines of a picture."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Linear(_SIDE, width)
        block = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(self.embed(x.squeeze(1))).mean(dim=1))
        return logits


class Tied(nn.Module):
    """An autoencoder whose decoder is its encoder, transposed, with a classifier on the code."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(_SIDE**2, width)
        self.head = nn.Linear(width, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        code = F.relu(self.encoder(x.flatten(1)))
        back = F.relu(F.linear(code, self.encoder.weight.T))
        logits: Tensor = self.head(F.relu(self.encoder(back)) + code)
        return logits


class Adapted(nn.Module):
    """LoRA: frozen layers with a trained product of thin matrices beside each."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(_SIDE**2, width)
        self.down, self.up = nn.Linear(_SIDE**2, rank, bias=False), nn.Linear(rank, width, bias=False)
        self.head = nn.Linear(width, _CLASSES)
        nn.init.zeros_(self.up.weight)
        self.base.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        logits: Tensor = self.head(F.relu(self.base(flat) + self.up(self.down(flat))))
        return logits


def _dense(width: int, depth: int, norm: Callable[[int], nn.Module], act: type[nn.Module]) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    size = _SIDE**2
    for _ in range(depth):
        layers += [nn.Linear(size, width), norm(width), act()]
        size = width
    return nn.Sequential(*layers, nn.Linear(size, _CLASSES))


def _conv(width: int, depthwise: bool, norm: bool) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(1, width, 3, padding=1), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv2d(width, width, 3, padding=1, groups=width if depthwise else 1, bias=not norm)]
        layers += [nn.BatchNorm2d(width)] if norm else []
        layers += [nn.Conv2d(width, width, 1)] if depthwise else []
        layers += [nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, _CLASSES))


def _no_norm(_width: int) -> nn.Module:
    return nn.Identity()


FAMILIES: dict[str, list[Callable[[], nn.Module]]] = {
    "mlp": [partial(_dense, 128, 2, _no_norm, nn.ReLU), partial(_dense, 300, 1, _no_norm, nn.ReLU)],
    "mlp, batch norm": [
        partial(_dense, 96, 2, nn.BatchNorm1d, nn.ReLU),
        partial(_dense, 200, 3, nn.BatchNorm1d, nn.ReLU),
    ],
    "mlp, layer norm": [
        partial(_dense, 96, 2, nn.LayerNorm, nn.GELU),
        partial(_dense, 64, 4, nn.LayerNorm, nn.ReLU),
    ],
    "mlp, sigmoid": [
        partial(_dense, 128, 1, _no_norm, nn.Sigmoid),
        partial(_dense, 64, 2, _no_norm, nn.Tanh),
    ],
    "mlp, smooth": [partial(_dense, 128, 2, _no_norm, nn.GELU), partial(_dense, 200, 3, _no_norm, nn.SiLU)],
    "cnn": [partial(_conv, 16, False, False), partial(_conv, 32, False, False)],
    "cnn, batch norm": [partial(_conv, 16, False, True), partial(_conv, 32, False, True)],
    "cnn, depthwise": [partial(_conv, 32, True, True), partial(_conv, 48, True, False)],
    "lstm": [partial(Recurrent, nn.LSTM, 1), partial(Recurrent, nn.LSTM, 2)],
    "gru": [partial(Recurrent, nn.GRU, 1), partial(Recurrent, nn.GRU, 2)],
    "transformer": [partial(Attentive, 32, 1), partial(Attentive, 32, 3)],
    "weight-tied": [partial(Tied, 64), partial(Tied, 128)],
    "lora": [partial(Adapted, 128, 4), partial(Adapted, 256, 8)],
}
HELD_OUT = frozenset({"mlp, layer norm", "mlp, smooth", "gru", "transformer", "weight-tied", "cnn"})
"""Chosen before any was scored, so that each kind has a relative on either side."""

_OPTIMISERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd, weight decay": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=2e-3),
    "adam, l2": lambda p: torch.optim.Adam(p, lr=2e-3, weight_decay=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=2e-3, weight_decay=0.1),
}


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    name: str
    model: nn.Module


@cache
def _digits() -> tuple[Tensor, Tensor]:
    data = load_data("digits")
    batch = data.batch(torch.arange(len(data)))
    return F.adaptive_avg_pool2d(batch.inputs, _SIDE), batch.labels


def trained_spec() -> InputSpec:
    """What all of them are fed."""
    return InputSpec(
        modality=Modality.IMAGE, shape=(1, _SIDE, _SIDE), num_classes=_CLASSES, value_range=(0.0, 1.0)
    )


def trained_sample() -> Tensor:
    """Examples as a client has them."""
    return _digits()[0][-256:]


def trained_models(family: str, *, seed: int) -> Iterator[TrainedModel]:
    """Each network with each optimiser: plain, pruned and tuned again, quantised to 8 bits, distilled."""
    for number, build in enumerate(FAMILIES[family]):
        teacher: nn.Module | None = None
        for way, optimiser in _OPTIMISERS.items():
            torch.manual_seed(seed + number)
            plain = fitted(build(), optimiser, epochs=_EPOCHS, teacher=teacher)
            sparse = fitted(pruned(plain, 0.7), optimiser, epochs=2, keep_zeros=True)
            stages = {
                "distilled" if teacher else "plain": plain,
                "pruned": sparse,
                "quantised": quantised(plain),
            }
            for stage, model in stages.items():
                yield TrainedModel(name=f"{family} {number}, {way}, {stage}", model=model)
            teacher = plain if way == "adam" else None


def fitted(
    model: nn.Module,
    optimiser: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    *,
    epochs: int,
    teacher: nn.Module | None = None,
    keep_zeros: bool = False,
) -> nn.Module:
    """Trained in place, against a teacher's logits where there is one."""
    inputs, labels = _digits()
    free = [p for p in model.parameters() if p.requires_grad]
    zeros = [p == 0 for p in free] if keep_zeros else []
    rule = optimiser(free)
    model.train()
    for _ in range(epochs):
        for chosen in torch.randperm(len(labels)).split(_BATCH):
            logits = model(inputs[chosen])
            loss = F.cross_entropy(logits, labels[chosen])
            if teacher is not None:
                with torch.no_grad():
                    wanted = teacher(inputs[chosen]).div(2).softmax(dim=1)
                loss = loss + F.cross_entropy(logits / 2, wanted)
            rule.zero_grad()
            loss.backward()
            rule.step()
            with torch.no_grad():
                for parameter, zero in zip(free, zeros, strict=False):
                    parameter[zero] = 0.0
    return model.eval()


@torch.no_grad()
def quantised(model: nn.Module, levels: int = 127) -> nn.Module:
    """A copy whose weights are multiples of one step in each tensor, as after int8 and back."""
    coarse = copy.deepcopy(model)
    for parameter in coarse.parameters():
        if parameter.dim() >= 2:
            step = parameter.abs().max().clamp_min(1e-12) / levels
            parameter.copy_((parameter / step).round() * step)
    return coarse
