"""Shifted rows: a change of rank one, how often the rows fire, and what peeling then reads."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from seepage.attacks.traps.shifted_rows import shifted_rows
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.types import Verdict
from seepage.guardian import guard

from .helpers import activations, attack_clients, dense_net, found_examples, image_batch, image_spec, knowing


def test_some_rows_are_shifted_along_the_mean_and_fire_seldom() -> None:
    spec = image_spec((1, 8, 8))
    public, net = image_batch(spec, 1000, seed=5), dense_net(spec, 200)
    crafted = shifted_rows(share=0.2, batch_size=50).craft(net, (), knowing(spec, auxiliary=public))
    assert crafted is not None
    change = crafted.model.get_parameter("1.weight").detach() - net.get_parameter("1.weight").detach()
    moved = change.norm(dim=1) > 0
    assert 20 <= int(moved.sum()) <= 40  # rows that fire seldom already stay as they are
    assert int(torch.linalg.matrix_rank(change, rtol=1e-5)) == 1
    mean = public.inputs.flatten(1).mean(dim=0)
    cosines = nn.functional.cosine_similarity(change[moved], -mean.expand(int(moved.sum()), -1))
    assert bool((cosines > 0.9999).all())
    fires = activations(crafted.model, "1", image_batch(spec, 2000, seed=6).inputs).float().mean(dim=0)
    assert bool((fires[moved] < 0.45).all()) and float(fires[moved].mean()) < 0.15
    rest = [n for n, p in net.named_parameters() if not torch.equal(p, crafted.model.get_parameter(n))]
    assert rest == ["1.weight"]


def test_it_reads_what_an_honest_model_hides_and_looks_honest() -> None:
    spec = image_spec((1, 8, 8))
    everything = image_batch(spec, 340, seed=9)
    batch, public = everything.select(slice(0, 40)), everything.select(slice(40, None))
    net, known = dense_net(spec, 400), knowing(spec, auxiliary=public)
    result, played = attack_clients(shifted_rows(batch_size=40, read="rows"), net, [batch], known)
    assert int(found_examples(result.values, batch.inputs).sum()) >= 10
    assert guard(played.exchanges[0].broadcast.model).verdict is Verdict.CLEAN


def test_what_it_cannot_do_is_said() -> None:
    spec = image_spec((1, 8, 8))
    public, net = image_batch(spec, 50, seed=1), dense_net(spec, 20)
    with pytest.raises(NotApplicable, match="grant 'auxiliary_data'"):
        shifted_rows().check(net, knowing(spec))
    convolved = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 20), nn.ReLU(), nn.Linear(20, 5)
    )
    with pytest.raises(NotApplicable, match="reads features"):
        shifted_rows().check(convolved, knowing(spec, auxiliary=public))
    for wrong in ({"share": 0.0}, {"share": 1.5}, {"batch_size": 1}, {"read": "nothing"}):
        with pytest.raises(SpecError):
            shifted_rows(**wrong)
