"""`check_detector`: what every detector of this package is held to."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from seepage.core.errors import NotApplicable
from seepage.core.registry import wants
from seepage.core.types import Batch, Broadcast, Finding, InputSpec, Modality, Verdict
from seepage.engine.isolation.attack import planned_attack
from seepage.guardian.check import built_detector
from seepage.guardian.detectors import DETECTORS
from seepage.models.loading import build_model
from seepage.testing.failed import check_settings, copied, in_words, must, same
from seepage.testing.setting import Setting

_HONEST = ("mlp", "lenet_zhu", "plain_convnet", "resnet20", "vit")
_SEEDS = (0, 1)
_SPEC = InputSpec(modality=Modality.IMAGE, shape=(3, 32, 32), num_classes=10)


def check_detector(detector: Any, *, traps: Sequence[Any] = ()) -> None:
    """Check a detector of your own.

    It accuses none of a few freshly initialised networks, has the same verdict twice (it may look at other
    rows each time, which no server can foresee), leaves the model as it is, and
    finds the traps that it is said to know.

    detector: a function of a broadcast, one that builds such a function (from spec, sample, batch, previous
        and history, where it has parameters for them), or a name.
    traps: models that it must not call clean, or names of attacks that craft one.

    >>> check_detector("trap_rows", traps=["trap_weights"])
    """
    with in_words("the detector"):
        build = DETECTORS.find(detector) if isinstance(detector, str) else detector
    must(callable(build), f"{build!r} is no detector: give a function of a broadcast, or one that builds it.")
    if not wants(build):
        check_settings(build, "the detector")
    able = 0
    for name in _HONEST:
        for seed in _SEEDS:
            model = build_model(name, _SPEC, seed=seed)
            found = _found(build, model)
            able += found is not None
            must(
                found is None or found.verdict is Verdict.CLEAN,
                f"the detector accuses a freshly initialised {name} (seed {seed}): "
                f"{'' if found is None else found.evidence}; raise its threshold.",
            )
    must(
        bool(able) or bool(traps),
        "the detector could look at none of the models: raise NotApplicable only where a layer that it needs "
        "is missing.",
    )
    for trap in traps:
        caught = _found(build, trap if isinstance(trap, nn.Module) else _crafted(trap))
        must(
            caught is not None and caught.verdict is not Verdict.CLEAN,
            f"the detector does not find {trap if isinstance(trap, str) else 'a trap'}, which it is said to "
            "know: lower its threshold, or leave that trap out.",
        )


def _found(build: Any, model: nn.Module) -> Finding | None:
    """None where the detector says that it cannot look at such a model."""
    before = copied(model.state_dict())
    sample = torch.rand(8, *_SPEC.shape, generator=torch.Generator().manual_seed(0))
    given = {
        "spec": _SPEC,
        "sample": sample,
        "batch": Batch(sample, torch.arange(8)),
        "previous": copy.deepcopy(model),
        "history": [copy.deepcopy(model) for _ in range(3)],
    }
    with in_words("the detector"):
        try:
            found, again = (built_detector(build, given)(Broadcast(model)) for _ in range(2))
        except NotApplicable:
            return None
    must(isinstance(found, Finding), f"the detector returns a {type(found).__name__}: return a Finding.")
    must(
        found.verdict is again.verdict,
        "the detector comes to another verdict the second time: look at so much that what it draws does not "
        "matter.",
    )
    must(same(before, dict(model.state_dict())), "the detector changes the model: work on a copy.")
    must(math.isfinite(found.score), "the detector's score is no finite number.")
    must(bool(found.evidence), "the detector gives no evidence: say in words what it saw.")
    return found


def _crafted(name: str) -> nn.Module:
    """The model that an attack sends in its first round."""
    attack = planned_attack(name, {})
    pictures = torch.rand(60, *_SPEC.shape, generator=torch.Generator().manual_seed(0))
    setting = Setting.of("mlp", (pictures, torch.arange(60) % 10), 1)
    crafted = attack.next_model(setting.model, [], setting.known(attack))
    must(crafted is not None, f"attack '{name}' crafts no model: name one that does.")
    assert crafted is not None
    return crafted.model
