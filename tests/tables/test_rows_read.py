"""Clipping scales weight and bias gradients alike, so it cannot hide anything; noise can."""

import torch

from seepage.core.types import Broadcast, Exchange, Knowledge, LocalTraining
from seepage.data import load_data
from seepage.defenses.clipping import clipping
from seepage.defenses.gaussian_noise import gaussian_noise
from seepage.models.loading import build_model
from seepage.protocol import client
from seepage.tables.rows_read import PooledRows, StrongestRow


def read(defenses):
    """The example, and what both readings make of its gradient."""
    digits = load_data("digits")
    batch = digits.batch(torch.tensor([3]))
    sent = Broadcast(build_model("fcnn", digits.spec, width=50, hidden=(200,), initialiser="xavier_uniform"))
    update = client(LocalTraining(), defenses)(sent, batch)
    seen = [Exchange(broadcast=sent, update=update, clients=(0,))]
    found = [
        attack.run(seen, Knowledge(input=digits.spec)).values for attack in (StrongestRow(), PooledRows())
    ]
    return batch.inputs, *found


def test_clipping_alone_leaves_the_example_exact():
    for defenses in ([], [clipping(norm=1.0)], [clipping(norm=1e-3)]):
        truth, single, pooled = read(defenses)
        assert torch.allclose(single, truth, atol=1e-4) and torch.allclose(pooled, truth, atol=1e-4)


def test_noise_hides_it_and_pooling_gets_some_back():
    off = []
    for sigma in (1e-3, 1.0):
        truth, single, pooled = read([gaussian_noise(sigma=sigma, seed=0), clipping(norm=1.0)])
        off.append([float((x.clamp(0, 1) - truth).square().mean()) for x in (single, pooled)])
    (weak_single, weak_pooled), (strong_single, _) = off
    assert weak_pooled < weak_single < strong_single
    assert strong_single > float((truth - 0.5).square().mean()) / 2
