"""Knowing a defense never makes an answer worse than the plain attack's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from seepage.attacks import ATTACKS
from seepage.attacks.adaptive.answers import ANSWERS
from seepage.attacks.adaptive.attack import adaptive
from seepage.attacks.adaptive.both import with_plain
from seepage.core.types import (
    Batch,
    Broadcast,
    Exchange,
    Knowledge,
    LocalTraining,
    Reconstruction,
    RowCount,
    Update,
)
from seepage.data import load_data
from seepage.models.loading import build_model
from seepage.protocol import client

LOCAL = LocalTraining(algorithm="fedavg", lr=0.1)
DIGITS = load_data("digits")
KNOWN = Knowledge(input=DIGITS.spec, local=LOCAL)


def _largest(update: Update, share: float) -> Update:
    """As PercentilePrivacy: nothing below a percentile of all entries."""
    low = torch.cat([t.abs().flatten() for t in update.tensors.values()]).quantile(share)
    cut = {name: torch.where(t.abs() < low, 0 * t, t) for name, t in update.tensors.items()}
    return replace(update, tensors=cut)


def _seen(seed: int, share: float = 0.95) -> tuple[Exchange, Batch]:
    index = torch.randperm(len(DIGITS), generator=torch.Generator().manual_seed(seed))[:4]
    batch, sent = DIGITS.batch(index), Broadcast(build_model("mlp", DIGITS.spec, seed=seed))
    update = _largest(client(LOCAL)(sent, batch), share)
    return Exchange(broadcast=sent, update=update, clients=(0,)), batch


def _errors(found: Reconstruction, truth: Batch) -> torch.Tensor:
    """Of each example, the distance to the nearest candidate."""
    wanted = DIGITS.spec.to_raw(truth.inputs).flatten(1)
    return torch.cdist(wanted, found.values.float().flatten(1)).amin(1)


OTHERS = {"oasis", "soteria", "share_layers"}
"""Copies are counted in the first; by the others another layer is read, whose features are no inputs."""
SETTINGS = {
    "nvflare:PercentilePrivacy": {"percentile": 95, "gamma": 2.0},
    "flower:LocalDpMod": {"clipping_norm": 1.0, "sensitivity": 1e-4, "epsilon": 10.0, "delta": 1e-5},
    "flower:fixedclipping_mod": {"clipping_norm": 0.01},
    "flower:adaptiveclipping_mod": {"clipping_norm": 0.01},
}


@pytest.mark.parametrize("name", sorted(set(ANSWERS) - OTHERS))
def test_no_example_comes_out_worse_for_knowing_a_defense(name: str) -> None:
    """Whatever really was done to the update; one entry in twenty is what no rank can fill in."""
    seen, truth = _seen(3)
    plain = _errors(ATTACKS["analytic_extraction"]().run([seen], KNOWN), truth)
    knows = [{"name": name, **SETTINGS.get(name, {})}]
    knowing = adaptive(attack="analytic_extraction", knows=knows).run([seen], KNOWN)
    assert bool((_errors(knowing, truth) <= plain + 1e-6).all()), (name, plain, _errors(knowing, truth))


def test_what_is_counted_once_is_not_counted_twice() -> None:
    values, rows = torch.rand(3, 4), RowCount(total=9, active=5)
    one = Reconstruction(
        values=values, claimed=torch.tensor([True, False, False]), support=torch.tensor([2, 2, 1]), rows=rows
    )
    both = with_plain(one, replace(one, claimed=None, complete=True))
    assert both.rows == rows and both.support is not None and int(both.support.sum()) == 5
    assert both.claimed is not None and both.claimed.tolist() == [True, False, False, False, False, False]
    assert both.complete is True and with_plain(one, replace(one, values=values[:0])) is one
    nothing = Reconstruction(values=values)
    assert with_plain(nothing, nothing).claimed is None
    claimed = with_plain(nothing, replace(nothing, claimed=torch.tensor([True, True, False]))).claimed
    assert claimed is not None and claimed.tolist() == [False] * 3 + [True, True, False]


def test_an_update_that_nothing_was_done_to_is_attacked_once() -> None:
    seen, _ = _seen(1, share=0.0)
    knows = [{"name": "flower:fixedclipping_mod", "clipping_norm": 1e9}]
    found = adaptive(attack="analytic_extraction", knows=knows).run([seen], KNOWN)
    assert len(found) == len(ATTACKS["analytic_extraction"]().run([seen], KNOWN))
