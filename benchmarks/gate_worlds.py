"""Data, networks and local trainings for `gate_abroad.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from seepage.core.errors import SeepageError
from seepage.core.types import Batch, InputSpec, LocalTraining, Modality
from seepage.data import load_data, standardised

PUBLIC = 200
Build = Callable[[InputSpec], nn.Module]


@dataclass(frozen=True)
class World:
    """A deployment: what is learned from, by which network, and how clients train it."""

    name: str
    data: str
    build: Build
    sizes: tuple[int, ...] = (16,)
    local: LocalTraining = field(default_factory=LocalTraining)
    loss: str = "cross_entropy"

    def drawn(self, size: int, seed: int) -> tuple[InputSpec, Batch, Batch]:
        """The client's batch and public examples. Data that are not at hand: digits."""
        generator = torch.Generator().manual_seed(seed)
        if self.data == "tokens":
            return _tokens(size, generator)
        try:
            data = load_data(self.data)
        except SeepageError:
            data = load_data("digits")
        data = standardised(data, torch.arange(len(data)))
        order = torch.randperm(len(data), generator=generator)
        return data.spec, data.batch(order[:size]), data.batch(order[size : size + PUBLIC])


def _tokens(size: int, generator: torch.Generator) -> tuple[InputSpec, Batch, Batch]:
    spec = InputSpec(modality=Modality.TEXT, shape=(10,), num_classes=2, value_range=None, vocabulary=400)
    ids = torch.randint(1, 400, (size + PUBLIC, 10), generator=generator)
    labels = torch.randint(2, (size + PUBLIC,), generator=generator)
    return spec, Batch(ids[:size], labels[:size]), Batch(ids[size:], labels[size:])


def values_of(spec: InputSpec) -> int:
    return int(torch.tensor(spec.shape).prod())


def mlp(*hidden: int, act: type[nn.Module] = nn.ReLU, norm: bool = False, bias: bool = True) -> Build:
    def build(spec: InputSpec) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        size = values_of(spec)
        for width in hidden:
            layers.append(nn.Linear(size, width, bias=bias))
            layers += [nn.BatchNorm1d(width)] if norm else []
            layers += [act(), nn.Dropout(0.2)] if norm else [act()]
            size = width
        return nn.Sequential(*layers, nn.Linear(size, spec.num_classes))

    return build


def cnn(spec: InputSpec) -> nn.Module:
    channels, side, _ = spec.shape
    return nn.Sequential(
        nn.Conv2d(channels, 12, 5, padding=2, stride=2), nn.BatchNorm2d(12), nn.ReLU(),
        nn.Conv2d(12, 12, 5, padding=2, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(12 * (side // 4) ** 2, 120), nn.ReLU(), nn.Linear(120, spec.num_classes),
    )  # fmt: skip


def lenet5(spec: InputSpec) -> nn.Module:
    """Its third convolution covers the whole map: a dense layer by another name."""
    channels, side, _ = spec.shape
    left = (side // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(),
        nn.AvgPool2d(2), nn.Conv2d(16, 120, left), nn.ReLU(), nn.Flatten(), nn.Linear(120, spec.num_classes),
    )  # fmt: skip


def wide_kernel(spec: InputSpec) -> nn.Module:
    """The first convolution has a kernel as large as the picture."""
    channels, side, _ = spec.shape
    return nn.Sequential(
        nn.Conv2d(channels, 400, side), nn.ReLU(), nn.Flatten(), nn.Linear(400, 60), nn.ReLU(),
        nn.Linear(60, spec.num_classes),
    )  # fmt: skip


def pooled(act: type[nn.Module] = nn.Sigmoid) -> Build:
    def build(spec: InputSpec) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(spec.shape[0], 24, 5, stride=2, padding=2), act(),
            nn.Conv2d(24, 48, 3, stride=2, padding=1), act(), nn.Conv2d(48, 48, 3, padding=1), act(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(192, spec.num_classes),
        )  # fmt: skip

    return build


class Adapted(nn.Module):
    """A frozen dense layer with a trained low-rank one beside it (LoRA), and a trained head."""

    def __init__(self, size: int, width: int, rank: int, classes: int) -> None:
        super().__init__()
        self.base = nn.Linear(size, width).requires_grad_(False)
        self.down, self.up = nn.Linear(size, rank, bias=False), nn.Linear(rank, width, bias=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        out: torch.Tensor = self.head(torch.relu(self.base(x) + self.up(self.down(x))))
        return out


def adapted(spec: InputSpec) -> nn.Module:
    return Adapted(values_of(spec), 200, 32, spec.num_classes)


def gpt2(language: bool) -> Build:
    def build(spec: InputSpec) -> nn.Module:
        from transformers import GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=400, n_positions=16, n_embd=96, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, num_labels=2, pad_token_id=0, attn_implementation="eager",
        )  # fmt: skip
        return GPT2LMHeadModel(config) if language else GPT2ForSequenceClassification(config)

    return build


def bert(spec: InputSpec) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=400, max_position_embeddings=16, hidden_size=96, num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=2,
        attn_implementation="eager",
    )  # fmt: skip
    return BertForSequenceClassification(config)


def bag(spec: InputSpec) -> nn.Module:
    return nn.Sequential(nn.Embedding(400, 8), nn.Flatten(), nn.Linear(80, 120), nn.ReLU(), nn.Linear(120, 2))


_STEPS = LocalTraining(algorithm="fedavg", batch_size=4, epochs=1, lr=0.05)
_ADAM = LocalTraining(algorithm="fedavg", steps=3, epochs=3, lr=1e-3, optimizer="adam")
_NORM = LocalTraining(batch_norm="train")

WORLDS = (
    World("mnist mlp", "mnist", mlp(300, 100), (32,)),
    World("mnist gelu bn", "mnist", mlp(300, 100, act=nn.GELU, norm=True)),
    World("mnist relu bn train", "mnist", mlp(300, 100, norm=True), local=_NORM),
    World("mnist mlp 4 steps", "mnist", mlp(300, 100), local=_STEPS),
    World("mnist mlp adam", "mnist", mlp(300, 100), (8,), local=_ADAM),
    World("mnist no bias", "mnist", mlp(300, 100, bias=False)),
    World("mnist lora", "mnist", adapted),
    World("mnist lenet5", "mnist", lenet5),
    World("mnist wide kernel", "mnist", wide_kernel),
    World("mnist pooled", "mnist", pooled(), (1, 4)),
    World("cifar cnn", "cifar10", cnn),
    World("cifar mlp tanh", "cifar10", mlp(200, 100, act=nn.Tanh)),
    World("cifar pooled", "cifar10", pooled(nn.ReLU), (4, 32)),
    World("table mlp", "breast_cancer", mlp(100, 50), (32,)),
    World("table gelu", "breast_cancer", mlp(100, 50, act=nn.GELU), (8,)),
    World("tokens flat", "tokens", bag, (8,)),
    World("tokens gpt2", "tokens", gpt2(language=False), (1, 4)),
    World("tokens gpt2 language", "tokens", gpt2(language=True), (1, 4), loss="next_token"),
    World("tokens bert", "tokens", bert, (1, 4)),
)
