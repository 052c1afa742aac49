"""Soteria's mask against a brute-force Jacobian."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from seepage.core.errors import DataError, ModelError, SpecError
from seepage.core.types import Batch, Broadcast, LocalTraining
from seepage.defenses.soteria import _estimated_slopes, _slopes, soteria, soteria_mask
from seepage.protocol import client, local_update


def conv_net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Sigmoid(), nn.Flatten(), nn.Linear(2 * 16, 5)
    ).double()


BATCH = Batch(
    torch.rand(3, 1, 6, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64),
    torch.tensor([0, 4, 2]),
)


def brute_force(body: nn.Module, inputs: Tensor, pruned: int) -> set[int]:
    """Indices with the smallest sum over examples of ||dr_i/dX|| / |r_i|, one full Jacobian an example."""
    total = 0
    for x in inputs:
        jacobian = torch.autograd.functional.jacobian(lambda x: body(x.unsqueeze(0))[0], x)  # (F, 1, 6, 6)
        total = total + (jacobian.flatten(1).norm(dim=1) / body(x.unsqueeze(0))[0].abs()).detach().numpy()
    return set(np.argsort(total)[:pruned].tolist())


@pytest.mark.parametrize(("share", "pruned"), [(0.0, 0), (0.25, 8), (0.6, 19), (0.9, 29)])
def test_the_mask_against_a_brute_force_jacobian(share, pruned) -> None:
    model = conv_net()
    model.train()
    name, mask = soteria_mask(model, BATCH.inputs, share=share)
    assert name == "4.weight"
    assert model.training
    assert set((mask == 0).nonzero().squeeze(1).tolist()) == brute_force(
        model.eval()[:4], BATCH.inputs, pruned
    )


def test_only_the_masked_columns_of_the_defended_layer_change() -> None:
    received = Broadcast(conv_net())
    plain = local_update(received, BATCH, LocalTraining())
    sent = client(LocalTraining(), [soteria(share=0.5, probes=0)])(received, BATCH)
    _, mask = soteria_mask(received.model, BATCH.inputs, share=0.5)
    assert torch.equal(sent.tensors["4.weight"], plain.tensors["4.weight"] * mask)
    assert (sent.tensors["4.weight"] == 0).all(dim=0).sum() == 16
    others = [k for k in plain.tensors if k != "4.weight"]
    assert all(torch.equal(sent.tensors[k], plain.tensors[k]) for k in others)
    assert not BATCH.inputs.requires_grad


def test_entries_that_are_zero_for_everybody_use_up_no_budget() -> None:
    body = nn.Linear(4, 6).double()
    with torch.no_grad():
        body.bias[:3] = -100.0  # dead
        body.bias[3:] = 100.0
    model = nn.Sequential(body, nn.ReLU(), nn.Linear(6, 2).double())
    _, mask = soteria_mask(model, torch.rand(2, 4, dtype=torch.float64), share=0.5, layer="2")
    assert mask.tolist() == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    _, more = soteria_mask(model, torch.rand(2, 4, dtype=torch.float64), share=0.9, layer="2")
    assert more.tolist() == mask.tolist()


def test_a_layer_that_reads_the_input_loses_its_largest_pixels() -> None:
    """There r = X and dr_i/dX has norm 1: the ratio is 1 / |x_i|."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    name, mask = soteria_mask(model, torch.tensor([[[[0.1, 0.9], [0.5, 0.7]]]]), share=0.5)
    assert (name, mask.tolist()) == ("1.weight", [1.0, 0.0, 1.0, 0.0])


def test_a_layer_that_clients_do_not_train_as_it_is_is_passed_over() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    nn.utils.parametrizations.weight_norm(model[1])
    assert soteria_mask(model, torch.rand(2, 1, 2, 2), share=0.5)[0] == "3.weight"


def test_a_model_without_forward_derivatives_is_told_how_it_can_be_defended() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.cell(x)[0][:, -1])

    inputs = torch.rand(2, 3, 4)
    with pytest.raises(ModelError, match="set probes = 0"):
        soteria_mask(Recurrent(), inputs, share=0.5, probes=4)
    assert soteria_mask(Recurrent(), inputs, share=0.5)[0] == "head.weight"


def test_a_model_it_does_not_fit_is_refused() -> None:
    received = Broadcast(conv_net())
    with pytest.raises(SpecError, match=r"unknown dense layer for Soteria '5'.*Valid: 4"):
        client(LocalTraining(), [soteria(layer="5")])(received, BATCH)
    with pytest.raises(ModelError, match="this model runs none"):
        soteria_mask(nn.Sequential(nn.Conv2d(1, 2, 6), nn.Flatten()).double(), BATCH.inputs, share=0.5)
    with pytest.raises(DataError, match="not token ids"):
        soteria_mask(nn.Embedding(5, 2), torch.tensor([[1, 2]]), share=0.5)
    frozen = conv_net()
    frozen[4].weight.requires_grad_(False)
    with pytest.raises(ModelError, match="frozen and never sent"):
        client(LocalTraining(), [soteria()])(Broadcast(frozen), BATCH)


class Thresholded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(36, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x > 0.5).flatten(1).double())


def test_a_representation_without_a_slope_is_refused() -> None:
    with pytest.raises(ModelError, match="does not depend on the input smoothly"):
        soteria_mask(Thresholded(), BATCH.inputs, share=0.5)


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_soteria_refuses(share) -> None:
    with pytest.raises(ValueError, match="share must be zero or more and below 1"):
        soteria(share=share)


def test_estimated_norms_are_those_of_the_jacobian() -> None:
    """Each is within five standard errors of the exact one; many probes choose what the exact norms do."""
    model = conv_net().eval()
    inputs = BATCH.inputs.clone().requires_grad_()
    exact = _slopes(model[:4](inputs), inputs)
    generator = torch.Generator().manual_seed(0)
    for probes in (100, 10_000):
        found = _estimated_slopes(model, "4", BATCH.inputs, probes, generator)
        assert ((found / exact - 1).abs() < 5 * (1 / (2 * probes)) ** 0.5).all()
    _, wanted = soteria_mask(model, BATCH.inputs, share=0.5)
    _, mask = soteria_mask(model, BATCH.inputs, share=0.5, probes=20_000, generator=generator)
    assert (mask != wanted).sum() <= 2  # two entries at the border may change places


def test_one_seed_gives_one_mask() -> None:
    received = Broadcast(conv_net())
    one, two = (client(LocalTraining(), [soteria(probes=2, seed=3)])(received, BATCH) for _ in range(2))
    assert torch.equal(one.tensors["4.weight"], two.tensors["4.weight"])
    with pytest.raises(ValueError, match="probes must be zero"):
        soteria(probes=-1)
