"""Moderate fishing: what the head looks like, what the guard says, and how well a lone example comes out."""

from __future__ import annotations

import math

import pytest
import torch
from tests.attacks.fishing.play import dense_net, fish, images, known_to
from torch import nn

from seepage.attacks.fishing.class_fishing import class_fishing, moderate_fishing
from seepage.attacks.fishing.head import class_head, find_head
from seepage.attacks.fishing.purified import leading_pair
from seepage.core.errors import SpecError
from seepage.core.types import Verdict
from seepage.guardian import guard

LABELS = [0, 0, 1, 2, 2, 2, 5, 5]


def test_the_other_rows_keep_their_directions_and_the_share_of_the_energy() -> None:
    net, known = dense_net(), known_to()
    head = find_head(net, known.input)
    made = class_head(net, head, 3, alpha=3.0, keep=0.08)
    before, after = net.get_parameter(head.weight), made.get_parameter(head.weight)
    energy = after.detach().square().sum(dim=1)
    others = torch.arange(head.classes) != 3
    assert float(energy[others].sum() / energy.sum()) == pytest.approx(0.08, rel=1e-4)
    assert torch.equal(after[3], before[3])
    assert float(nn.functional.cosine_similarity(after, before).min()) > 0.9999
    assert head.bias is not None
    bias = made.get_parameter(head.bias)
    assert bool((bias[others] - bias[3] == 3.0).all())


def test_the_pair_of_a_dominant_example_is_that_of_the_svd() -> None:
    torch.manual_seed(0)
    matrix = torch.outer(torch.randn(30), torch.randn(12)) + 0.1 * torch.randn(30, 12)
    left, sizes, right = torch.linalg.svd(matrix.double())
    nearest = sizes[0] * torch.outer(left[:, 0], right[0])
    assert torch.allclose(leading_pair(matrix).double(), nearest, atol=1e-5)


def test_a_lone_example_comes_out_as_a_picture_at_a_clean_verdict() -> None:
    net, batch, known = dense_net(), images(8, labels=LABELS), known_to()
    attack = moderate_fishing(target_class=1)
    catch, played = fish(attack, net, [batch], known)
    assert catch.class_counts is not None
    assert catch.class_counts.round().tolist() == torch.bincount(batch.labels, minlength=10).tolist()
    assert guard(played.exchanges[0].broadcast.model).verdict is Verdict.CLEAN
    assert guard(class_fishing(target_class=1).craft(net, [], known).model).verdict is not Verdict.CLEAN  # type: ignore[union-attr]
    found = attack.run(played.exchanges, known)
    error = float((found.values[0] - batch.inputs[2]).square().mean())
    assert -10 * math.log10(error) > 25
    # Taken for the example itself, the answer is a mixture: nothing of it may be vouched for.
    assert found.claimed is None or not bool(found.claimed.any())


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"keep": 0.0}, {"keep": 1.0}, {"gap": 0.0}):
        with pytest.raises(SpecError):
            moderate_fishing(**wrong)
    with pytest.raises(SpecError, match="share of the energy"):
        class_fishing(keep=-0.1)
