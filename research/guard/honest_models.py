"""Honest models to calibrate the guard on: all initialisers, several architectures and stages, pruning."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from seepage.core.types import Batch, InputSpec, Modality
from seepage.data import load_data, standardised
from seepage.models.loading import build_model
from seepage.models.zoo.initialisers import INITIALISERS

_WORDS = 200
_LARGEST_STEP = 1.0
"""Gradients are clipped to this norm, as runs from N(0, 4) weights would diverge otherwise."""
EARLY, LATE, ONE_ROUND = 20, 60, 5


@dataclass(frozen=True, kw_only=True)
class Setting:
    """An architecture on a dataset."""

    model: str
    data: str
    params: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    lr: float = 0.05

    @property
    def name(self) -> str:
        return f"{self.model}/{self.data}"

    def build(self, *, initialiser: str, seed: int) -> nn.Module:
        spec, _ = examples(self)
        return build_model(self.model, spec, initialiser=initialiser, seed=seed, **self.params)


_SMALL, _TWELVE, _TINY = {"size": 16}, {"size": 12}, {"size": 10}
_NORMALISED = {"size": 16, "mean": 0.5, "std": 0.25}
_NORMALISED_12 = {**_NORMALISED, "size": 12}

CALIBRATION: tuple[Setting, ...] = (
    Setting(model="mlp", data="digits", params={"hidden": (128, 64)}),
    Setting(model="vgg_like", data="digits", params={"filters": (8, 16, 16), "width": 64}),
    Setting(model="convnet", data="photos", params={"width": 4}, options=_TINY),
    Setting(model="resnet20", data="photos", params={"width": 4}, options=_TINY),
    Setting(model="lenet_zhu", data="digits"),
    Setting(model="vit", data="digits", params={"patch_size": 4, "dim": 24, "depth": 2, "heads": 2}),
    Setting(model="text_classifier", data="words", params={"dim": 8, "width": 64}),
    Setting(model="fcnn", data="faces", params={"width": 200, "hidden": (100, 50)}),
    Setting(model="mlp", data="photos", params={"hidden": (256, 64)}, options=_NORMALISED),
    Setting(model="vgg_like", data="photos", params={"filters": (12, 12), "width": 96}, options=_SMALL),
    Setting(model="text_classifier", data="words", params={"dim": 12, "width": 100}),
    Setting(model="mlp", data="faces", params={"hidden": (160, 80)}, lr=0.1),
    Setting(model="fcnn", data="photos", params={"width": 450, "hidden": (64,)}, options=_NORMALISED_12),
    Setting(model="fcnn", data="breast_cancer", params={"width": 80, "hidden": (60, 40)}, lr=0.1),
    Setting(model="vgg_like", data="faces", params={"filters": (6, 10), "width": 80}),
    Setting(model="convnet", data="photos", params={"width": 3}, options=_TWELVE, lr=0.02),
    Setting(model="resnet32", data="digits", params={"width": 4}, lr=0.1),
    Setting(model="lenet_zhu", data="photos", params={"channels": 8}, options=_SMALL),
    Setting(model="text_classifier", data="words", params={"dim": 16, "width": 80}, lr=0.02),
)
"""Thresholds come from these, and detectors were developed on them."""

HELD_OUT: tuple[Setting, ...] = (
    Setting(model="mlp", data="digits", params={"hidden": (96, 96, 96, 48)}, lr=0.1),
    Setting(model="mlp", data="photos", params={"hidden": (300,)}, options=_TWELVE, lr=0.02),
    Setting(model="fcnn", data="digits", params={"width": 350, "hidden": (80,)}),
    Setting(
        model="vit",
        data="photos",
        params={"patch_size": 4, "dim": 32, "depth": 3, "heads": 4},
        options=_TWELVE,
        lr=0.02,
    ),
    Setting(model="resnet20", data="digits", params={"width": 6}, lr=0.1),
    Setting(
        model="vgg_like", data="photos", params={"filters": (10, 14, 10), "width": 72}, options=_NORMALISED_12
    ),
    Setting(model="lenet_zhu", data="faces", params={"channels": 6}, lr=0.1),
    Setting(model="text_classifier", data="words", params={"dim": 10, "width": 120}, lr=0.1),
    Setting(model="fcnn", data="faces", params={"width": 120, "hidden": (120, 60, 30)}),
)
"""Not looked at before thresholds and detectors were fixed: other depths, widths, step sizes and seeds."""


@dataclass(frozen=True, kw_only=True)
class Honest:
    """One honest model, with models of earlier rounds where there are some."""

    setting: Setting
    initialiser: str
    stage: str
    model: nn.Module
    earlier: tuple[nn.Module, ...] = ()


@cache
def _examples(data: str, options: tuple[tuple[str, Any], ...]) -> tuple[InputSpec, Batch]:
    if data == "words":  # text with a rule to learn: half of each class's words are its own
        generator = torch.Generator().manual_seed(0)
        labels = torch.randint(3, (300,), generator=generator)
        tokens = torch.randint(_WORDS, (300, 12), generator=generator)
        tokens[:, :6] = tokens[:, :6] % 60 + 60 * labels.unsqueeze(1)
        spec = InputSpec(modality=Modality.TEXT, shape=(12,), num_classes=3, vocabulary=_WORDS)
        return spec, Batch(tokens, labels)
    loaded = load_data(data, **dict(options))
    loaded = standardised(loaded, torch.arange(len(loaded)))
    order = torch.randperm(len(loaded), generator=torch.Generator().manual_seed(0))
    return loaded.spec, loaded.batch(order[:600])


def examples(setting: Setting) -> tuple[InputSpec, Batch]:
    return _examples(setting.data, tuple(setting.options.items()))


def honest_models(settings: tuple[Setting, ...], *, seed: int) -> Iterator[Honest]:
    """Six stages for every setting and initialiser; runs that diverge are left out."""
    for setting in settings:
        for number, initialiser in enumerate(INITIALISERS):
            fresh = setting.build(initialiser=initialiser, seed=seed + number)
            decay = 5e-3 if number % 2 else 0.0
            _, batch = examples(setting)
            learn = partial(train, batch=batch, lr=setting.lr, decay=decay)
            before = learn(fresh, steps=EARLY - ONE_ROUND, seed=seed)
            early = learn(before, steps=ONE_ROUND, seed=seed + 1)
            almost = learn(early, steps=LATE - EARLY - ONE_ROUND, seed=seed + 2)
            late = learn(almost, steps=ONE_ROUND, seed=seed + 3)
            stages = {
                "fresh": (fresh, ()),
                "early": (early, (before, fresh)),
                "late": (late, (almost,)),
                "late, 50 % pruned": (pruned(late, 0.5), ()),
                "early, 90 % pruned": (pruned(early, 0.9), ()),
                "late, 90 % pruned": (pruned(late, 0.9), ()),
            }
            for stage, (model, earlier) in stages.items():
                if all(bool(torch.isfinite(p).all()) for p in model.parameters()):
                    yield Honest(
                        setting=setting, initialiser=initialiser, stage=stage, model=model, earlier=earlier
                    )


def train(
    model: nn.Module, *, batch: Batch, steps: int, seed: int, lr: float, decay: float = 0.0, size: int = 16
) -> nn.Module:
    """A copy after some steps of SGD."""
    trained = copy.deepcopy(model).train()
    optimiser = torch.optim.SGD(trained.parameters(), lr=lr, momentum=0.9, weight_decay=decay)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        chosen = batch.select(torch.randint(len(batch), (size,), generator=generator))
        loss = F.cross_entropy(trained(chosen.inputs), chosen.labels)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trained.parameters(), _LARGEST_STEP)
        optimiser.step()
    return trained.eval()


@torch.no_grad()
def pruned(model: nn.Module, share: float) -> nn.Module:
    """A copy whose smallest weights are zero, the same share in each layer (magnitude pruning)."""
    sparse = copy.deepcopy(model)
    for parameter in sparse.parameters():
        if parameter.dim() >= 2:
            limit = torch.quantile(parameter.abs().flatten()[:1_000_000], share)
            parameter[parameter.abs() <= limit] = 0.0
    return sparse
