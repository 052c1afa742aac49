"""Models crafted by the attacks of this package at several strengths, also by attackers who adapt."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from research.guard.honest_models import Setting, examples, train
from seepage.attacks.base import Attack
from seepage.attacks.fishing.binary_fishing import binary_fishing
from seepage.attacks.fishing.class_fishing import class_fishing
from seepage.attacks.fishing.cross_device_fishing import cross_device_fishing
from seepage.attacks.fishing.feature_fishing import feature_fishing
from seepage.attacks.traps.imprint import imprint
from seepage.attacks.traps.quantile_traps import quantile_traps
from seepage.attacks.traps.trap_weights import trap_weights
from seepage.core.errors import NotApplicable
from seepage.core.types import Batch, Knowledge, LocalTraining
from seepage.protocol import custom_threat, knowledge

_AUXILIARY = 100

Disguise = Callable[[nn.Module, nn.Module, torch.Generator], nn.Module]
"""(crafted model, honest model, randomness) to what an attacker who knows the guard would send instead."""


@dataclass(frozen=True, kw_only=True)
class Craft:
    """One attack at one strength."""

    family: str
    strength: str
    attack: Callable[[], Attack]
    auxiliary: bool = False
    disguise: Disguise | None = None


@dataclass(frozen=True, kw_only=True)
class CraftedModel:
    craft: Craft
    setting: Setting
    model: nn.Module
    previous: nn.Module


@torch.no_grad()
def jittered(crafted: nn.Module, honest: nn.Module, generator: torch.Generator, *, share: float) -> nn.Module:
    """Noise of so much of its own size on every weight that was crafted."""
    noisy = copy.deepcopy(crafted)
    before = dict(honest.named_parameters())
    for name, parameter in noisy.named_parameters():
        if name in before and not torch.equal(parameter, before[name]):
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.add_(share * parameter.abs() * drawn)
    return noisy


@torch.no_grad()
def partly_crafted(
    crafted: nn.Module, honest: nn.Module, generator: torch.Generator, *, every: int, resized: bool = False
) -> nn.Module:
    """Of a crafted dense layer one row in so many is kept, `resized` as long as the honest ones around it."""
    mixed = copy.deepcopy(crafted)
    before = dict(honest.named_parameters())
    for name, parameter in mixed.named_parameters():
        # Convolutions must pass all of the input on, so they are left as crafted.
        if name not in before or parameter.dim() > 2 or torch.equal(parameter, before[name]):
            continue
        weight = name.removesuffix("bias") + "weight" if name.endswith("bias") else name
        lengths = before[weight].norm(dim=1).mean(), crafted.get_parameter(weight).norm(dim=1).mean()
        kept = parameter[1::every] * (lengths[0] / lengths[1] if resized else 1.0)
        parameter.copy_(before[name])
        parameter[1::every] = kept
    return mixed


@torch.no_grad()
def bias_alone(crafted: nn.Module, honest: nn.Module, generator: torch.Generator) -> nn.Module:
    """Class fishing that keeps all rows of the classifier: its biases do the work."""
    kept = copy.deepcopy(crafted)
    before = dict(honest.named_parameters())
    for name, parameter in kept.named_parameters():
        if parameter.dim() >= 2:
            parameter.copy_(before[name])
    return kept


@torch.no_grad()
def jittered_imprint(crafted: nn.Module, honest: nn.Module, generator: torch.Generator) -> nn.Module:
    """Noise on the rows of the inserted layer, which no longer are exactly alike."""
    noisy = copy.deepcopy(crafted)
    weight = noisy.get_parameter("inserted_imprint.weight")
    weight.add_(0.2 * weight.abs() * torch.randn(weight.shape, generator=generator))
    return noisy


def _traps(hidden: bool) -> list[Craft]:
    family = "trap_weights" + (", hidden" if hidden else "")
    scales = [None, 0.5, 0.9, 0.97, 0.99]
    plain = [
        Craft(
            family=family,
            strength=f"s={'default' if s is None else s}",
            attack=partial(trap_weights, read="rows", scale=s, hidden=hidden),
        )
        for s in scales
    ]
    return [
        *plain,
        Craft(
            family=family,
            strength="s=.9, sigma=.02",
            attack=partial(trap_weights, read="rows", scale=0.9, sigma=0.02, hidden=hidden),
        ),
        Craft(
            family=family,
            strength="second dense layer",
            attack=partial(trap_weights, read="rows", layer="dense1", hidden=hidden),
        ),
        *(
            Craft(
                family=f"{family}, adaptive",
                strength=strength,
                attack=partial(trap_weights, read="rows", hidden=hidden),
                disguise=disguise,
            )
            for strength, disguise in (
                ("5 % jitter", partial(jittered, share=0.05)),
                ("20 % jitter", partial(jittered, share=0.2)),
                ("50 % jitter", partial(jittered, share=0.5)),
                ("half of the rows", partial(partly_crafted, every=2)),
            )
        ),
    ]


def _quantiles(hidden: bool) -> list[Craft]:
    family = "quantile_traps" + (", hidden" if hidden else "")
    return [
        Craft(
            family=family,
            strength=f"B={size}, {'auxiliary data' if auxiliary else 'assumed inputs'}",
            attack=partial(quantile_traps, read="rows", batch_size=size, hidden=hidden),
            auxiliary=auxiliary,
        )
        for size in (10, 100)
        for auxiliary in (False, True)
    ] + [
        Craft(
            family=f"{family}, adaptive",
            strength=strength,
            attack=partial(quantile_traps, read="rows", batch_size=20, hidden=hidden),
            auxiliary=True,
            disguise=disguise,
        )
        for strength, disguise in (
            ("half of the rows", partial(partly_crafted, every=2)),
            ("half of the rows, honest length", partial(partly_crafted, every=2, resized=True)),
            ("quarter of the rows", partial(partly_crafted, every=4)),
        )
    ]


CRAFTS: tuple[Craft, ...] = (
    *_traps(False),
    *_traps(True),
    *_quantiles(False),
    *_quantiles(True),
    *(
        Craft(family="imprint", strength=f"{bins} bins", attack=partial(imprint, bins=bins))
        for bins in (32, 200)
    ),
    Craft(family="imprint", strength="200 bins, ladder", attack=partial(imprint, bins=200, read="rows")),
    Craft(
        family="imprint, adaptive",
        strength="20 % jitter",
        attack=partial(imprint, bins=200),
        disguise=jittered_imprint,
    ),
    Craft(
        family="imprint, adaptive",
        strength="ladder, 20 % jitter",
        attack=partial(imprint, bins=200, read="rows"),
        disguise=jittered_imprint,
    ),
    *(
        Craft(
            family="class_fishing",
            strength=f"alpha={alpha:g}",
            attack=partial(class_fishing, target_class=1, alpha=alpha),
        )
        for alpha in (1000.0, 50.0)
    ),
    *(
        Craft(
            family="class_fishing, adaptive",
            strength=f"alpha={alpha:g}, rows kept",
            attack=partial(class_fishing, target_class=1, alpha=alpha),
            disguise=bias_alone,
        )
        for alpha in (50.0, 20.0)
    ),
    *(
        Craft(
            family="feature_fishing",
            strength=f"beta={beta:g}",
            attack=partial(feature_fishing, target_class=1, theta=0.1, beta=beta),
        )
        for beta in (1e6, 1e3, 10.0)
    ),
    Craft(
        family="feature_fishing, adaptive",
        strength="beta=1000, 20 % jitter",
        attack=partial(feature_fishing, target_class=1, theta=0.1, beta=1e3),
        disguise=partial(jittered, share=0.2),
    ),
    Craft(family="binary_fishing", strength="first query", attack=partial(binary_fishing, target_class=1)),
    Craft(
        family="cross_device_fishing",
        strength="first round",
        attack=partial(cross_device_fishing, target_class=1),
    ),
)


def one_of_each_family() -> list[Craft]:
    """The first strength of each family."""
    return list({craft.family: craft for craft in reversed(CRAFTS)}.values())[::-1]


def crafted_models(settings: tuple[Setting, ...], *, seeds: range) -> Iterator[CraftedModel]:
    """Every craft on every setting that it works in; every other honest model was trained before."""
    for setting in settings:
        _, batch = examples(setting)
        for seed in seeds:
            honest = setting.build(initialiser="default", seed=seed)
            if seed % 2:
                honest = train(honest, batch=batch, steps=40, lr=setting.lr, seed=seed)
            for craft in CRAFTS:
                model = crafted(craft, setting, honest, seed=seed)
                if model is not None:
                    yield CraftedModel(craft=craft, setting=setting, model=model, previous=honest)


def crafted(craft: Craft, setting: Setting, honest: nn.Module, *, seed: int) -> nn.Module | None:
    """What the attack makes of an honest model; None where it does not work on this architecture."""
    _, batch = examples(setting)
    known = _knowledge(setting, batch.select(slice(0, _AUXILIARY)) if craft.auxiliary else None, seed)
    attack = craft.attack()
    try:
        attack.check(honest, known)
        sent = attack.craft(honest, [], known)
    except NotApplicable:
        return None
    assert sent is not None
    if craft.disguise is None:
        return sent.model
    return craft.disguise(sent.model, honest, torch.Generator().manual_seed(seed))


def _knowledge(setting: Setting, auxiliary: Batch | None, seed: int) -> Knowledge:
    spec, _ = examples(setting)
    grants = ["auxiliary_data"] if auxiliary is not None else []
    return knowledge(
        custom_threat("malicious_server", grant=grants),
        "per_client",
        spec=spec,
        loss="cross_entropy",
        local=LocalTraining(),
        auxiliary=auxiliary,
        seed=seed,
    )
