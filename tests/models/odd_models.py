"""Models as users have them: other types of numbers, wrappers, frozen layers, odd outputs.

Each builder returns a module for 8x8 pictures of one channel and ten classes,
unless it is named in `TEXT_MODELS` (ten token ids below 40, two classes).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

CLASSES = 10
PIXELS = 64


def mlp(hidden: int = 48) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))


def conv_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(4 * PIXELS, CLASSES)
    )


class Wrapped(nn.Module):
    """Calls an inner network and makes something of its output."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


@dataclass
class ModelOutput:
    """As Hugging Face returns: logits beside other things."""

    logits: Tensor
    loss: Tensor | None = None


class HuggingFaceLike(Wrapped):
    def forward(self, x: Tensor) -> ModelOutput:
        return ModelOutput(logits=self.inner(x))


class DictOutput(Wrapped):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.inner(x)}


class TupleOutput(Wrapped):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner(x), x


class ListWithoutLogits(Wrapped):
    def forward(self, x: Tensor) -> list[str]:
        return ["nothing"]


class ExtraDimension(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).unsqueeze(1)


class SpatialLogits(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[:, :, None, None]


class InPlace(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2.0).sub_(0.5)
        return self.inner(x)


class ReturnsNaN(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) / 0.0 - self.inner(x) / 0.0


class NaNInTraining(Wrapped):
    """Finite forward, but the derivative of sqrt at zero is infinite."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return (y - y).sqrt() + y


class SecondArgument(Wrapped):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.inner(x * mask)


class UnusedParameters(Wrapped):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.unused = nn.Linear(7, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class LogSoftmax(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(self.inner(x), dim=1)


class Softmax(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).softmax(1)


class ExtraState(Wrapped):
    """Keeps something beside tensors in its state."""

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 3}

    def set_extra_state(self, state: object) -> None:
        assert state == {"version": 3}


class TiedWeights(nn.Module):
    """One layer used twice, and its transpose once more."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(PIXELS, PIXELS)
        self.second = nn.Linear(PIXELS, PIXELS)
        self.second.weight = self.first.weight
        self.head = nn.Linear(PIXELS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x.flatten(1)).relu()).relu())


class LoRALinear(nn.Module):
    """A frozen layer beside a trained product of two thin ones, as peft writes them."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        nn.init.normal_(self.lora_B.weight, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + 2.0 * self.lora_B(self.lora_A(x))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module] = nn.LSTM) -> None:
        super().__init__()
        self.cell = kind(8, 12, batch_first=True)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x.squeeze(1))[0][:, -1])


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(PIXELS, 16, dtype=torch.complex64)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x.flatten(1).to(torch.complex64)).abs())


class OnlyComplex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(PIXELS, CLASSES, dtype=torch.complex64)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x.flatten(1).to(torch.complex64)).abs()


class BuffersOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(PIXELS, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight


class NoParameters(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :CLASSES]


class MixedPrecision(nn.Module):
    """A half-precision body before a float32 head, as large models are often kept."""

    def __init__(self, *, fixed: bool) -> None:
        super().__init__()
        self.fixed = fixed
        self.body = nn.Linear(PIXELS, 48, dtype=torch.bfloat16)
        self.head = nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        own = torch.bfloat16 if self.fixed else self.body.weight.dtype
        return self.head(self.body(x.flatten(1).to(own)).relu().float())


class BareParameters(nn.Module):
    """Weights that belong to no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(PIXELS, CLASSES) / 8)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight


class TextModel(nn.Module):
    def __init__(self, *, sparse: bool = False, outputs: int = 2, frozen: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 6, sparse=sparse)
        self.embedding.requires_grad_(not frozen)
        self.dense = nn.Linear(60, 30)
        self.head = nn.Linear(30, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.dense(self.embedding(tokens).flatten(1)).relu())


def dead(model: nn.Module, name: str) -> nn.Module:
    """No example activates a neuron of this layer, so that its gradient is zero."""
    nn.init.constant_(model.get_submodule(name).bias, -1e3)
    return model


def frozen(model: nn.Module, *names: str) -> nn.Module:
    for name in names:
        model.get_submodule(name).requires_grad_(False)
    return model


def lora() -> nn.Module:
    model = mlp()
    model[1], model[3] = LoRALinear(model[1]), LoRALinear(model[3])
    return model


def lora_with_head() -> nn.Module:
    model = mlp()
    model[1] = LoRALinear(model[1])
    return model


def weight_norm() -> nn.Module:
    model = mlp()
    parametrizations.weight_norm(model[1])
    return model


def spectral_norm() -> nn.Module:
    model = mlp()
    parametrizations.spectral_norm(model[1])
    parametrizations.orthogonal(model[3])
    return model


def old_weight_norm() -> nn.Module:
    model = mlp()
    torch.nn.utils.weight_norm(model[1])
    return model


def pruned() -> nn.Module:
    model = mlp()
    prune.l1_unstructured(model[1], "weight", amount=0.5)
    return model


def quantised() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(mlp(), {nn.Linear}, dtype=torch.qint8)


def convolutions_only() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.Sigmoid(), nn.Conv2d(6, CLASSES, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


def with_batch_norm() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(PIXELS, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, CLASSES)
    )


def with_dropout() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(PIXELS, 48),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(48, CLASSES),
    )


def inference_mode() -> nn.Module:
    with torch.inference_mode():
        return mlp()


ODD_MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": mlp,
    "float64": lambda: mlp().double(),
    "float16": lambda: mlp().half(),
    "bfloat16": lambda: mlp().bfloat16(),
    "float64 convolutions": lambda: conv_net().double(),
    "float16 convolutions": lambda: conv_net().half(),
    "mixed precision": lambda: MixedPrecision(fixed=False),
    "fixed precision": lambda: MixedPrecision(fixed=True),
    "data parallel": lambda: nn.DataParallel(mlp()),
    "compiled": lambda: torch.compile(mlp()),
    "compiled data parallel": lambda: torch.compile(nn.DataParallel(mlp())),
    "compiled inside": lambda: nn.Sequential(torch.compile(mlp()), nn.Identity()),
    "averaged": lambda: torch.optim.swa_utils.AveragedModel(mlp()),
    "first layer frozen": lambda: frozen(mlp(), "1"),
    "last layer frozen": lambda: frozen(mlp(), "3"),
    "first convolution frozen": lambda: frozen(conv_net(), "0"),
    "all layers frozen": lambda: frozen(mlp(), ""),
    "low-rank adapters": lora,
    "low-rank adapter with head": lora_with_head,
    "hugging face": lambda: HuggingFaceLike(mlp()),
    "dict of logits": lambda: DictOutput(mlp()),
    "tuple": lambda: TupleOutput(mlp()),
    "list of strings": lambda: ListWithoutLogits(mlp()),
    "extra dimension": lambda: ExtraDimension(mlp()),
    "spatial logits": lambda: SpatialLogits(mlp()),
    "no parameters": NoParameters,
    "buffers only": BuffersOnly,
    "bare parameters": BareParameters,
    "convolutions only": convolutions_only,
    "weight norm": weight_norm,
    "old weight norm": old_weight_norm,
    "spectral norm": spectral_norm,
    "pruned": pruned,
    "tied weights": TiedWeights,
    "batch norm": with_batch_norm,
    "dropout": with_dropout,
    "lazy": lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(48), nn.ReLU(), nn.LazyLinear(CLASSES)),
    "input changed in place": lambda: InPlace(mlp()),
    "in-place activation": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(PIXELS, 48), nn.ReLU(inplace=True), nn.Linear(48, CLASSES)
    ),
    "returns NaN": lambda: ReturnsNaN(mlp()),
    "NaN gradients": lambda: NaNInTraining(mlp()),
    "meta device": lambda: mlp().to("meta"),
    "scripted": lambda: torch.jit.script(mlp()),
    "traced": lambda: torch.jit.trace(mlp(), torch.rand(2, 1, 8, 8)),
    "quantised": quantised,
    "complex": Complex,
    "only complex": OnlyComplex,
    "LSTM": Recurrent,
    "GRU": lambda: Recurrent(nn.GRU),
    "second argument": lambda: SecondArgument(mlp()),
    "unused parameters": lambda: UnusedParameters(mlp()),
    "log-softmax": lambda: LogSoftmax(mlp()),
    "softmax": lambda: Softmax(mlp()),
    "no bias": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(PIXELS, 48, bias=False), nn.ReLU(), nn.Linear(48, CLASSES, bias=False)
    ),
    "extra state": lambda: ExtraState(mlp()),
    "dead layer": lambda: dead(mlp(), "1"),
    "too few outputs": lambda: nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, 3)),
    "inference mode": inference_mode,
}

TEXT_MODELS: dict[str, Callable[[], nn.Module]] = {
    "text": TextModel,
    "sparse embedding": lambda: TextModel(sparse=True),
    "one output": lambda: TextModel(outputs=1),
    "float64 text": lambda: TextModel().double(),
    "float64 one output": lambda: TextModel(outputs=1).double(),
    "frozen embedding": lambda: TextModel(frozen=True),
    "dead text": lambda: dead(TextModel(), "dense"),
    "bfloat16 text": lambda: TextModel().bfloat16(),
}
