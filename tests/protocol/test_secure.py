"""Section 10.4 of Boenisch et al.: a victim summed with all-zero fakes is as readable as alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from seepage.attacks.reading.analytic_extraction import AnalyticExtraction
from seepage.core.errors import DataError, NotApplicable
from seepage.core.types import (
    Batch,
    Broadcast,
    Exchange,
    InputSpec,
    Knowledge,
    LocalTraining,
    Modality,
    Update,
)
from seepage.protocol import local_update
from seepage.protocol.secure import secure_sum, zero_fake

SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 4, 4), num_classes=3)


@pytest.fixture
def received() -> Broadcast:
    torch.manual_seed(0)
    return Broadcast(
        nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3)).to(torch.float64)
    )


def one_example(seed: int) -> Batch:
    g = torch.Generator().manual_seed(seed)
    return Batch(torch.rand(1, 1, 4, 4, generator=g, dtype=torch.float64), torch.tensor([seed % 3]))


def read(received: Broadcast, update: Update) -> torch.Tensor:
    seen = Exchange(broadcast=received, update=update, clients=(0,))
    return AnalyticExtraction().run([seen], Knowledge(input=SPEC)).values


def closest(found: torch.Tensor, secret: Batch) -> float:
    return min((v - secret.inputs[0]).abs().max().item() for v in found) if len(found) else 1.0


def test_a_victim_among_zero_fakes_is_read_exactly(received) -> None:
    secret = one_example(1)
    sent = local_update(received, secret, LocalTraining())
    summed = secure_sum([sent], fakes=9)
    assert torch.allclose(summed.tensors["1.weight"], sent.tensors["1.weight"] / 10, atol=1e-15)
    assert summed.num_examples == 10
    assert closest(read(received, summed), secret) < 1e-9


def test_enough_honest_contributors_are_demanded(received) -> None:
    sent = [local_update(received, one_example(s), LocalTraining()) for s in range(4)]
    with pytest.raises(NotApplicable, match=r"1 of 10 contributors proved .* they demand 4"):
        secure_sum(sent[:1], fakes=9, minimum_honest=4)
    summed = secure_sum(sent, fakes=6, minimum_honest=4)
    by_hand = sum(u.tensors["1.bias"] for u in sent) / 10
    assert torch.allclose(summed.tensors["1.bias"], by_hand, atol=1e-15)


def test_a_fake_contributes_nothing(received) -> None:
    sent = local_update(received, one_example(0), LocalTraining())
    fake = zero_fake(sent)
    assert all(not t.any() for t in fake.tensors.values())
    assert sent.tensors["1.bias"].any()
    assert (fake.kind, fake.num_examples) == (sent.kind, sent.num_examples)


def test_impossible_sums_are_refused(received) -> None:
    sent = local_update(received, one_example(0), LocalTraining())
    with pytest.raises(DataError, match="at least one honest contributor"):
        secure_sum([], fakes=3)
    with pytest.raises(DataError, match="fakes must be zero or more"):
        secure_sum([sent], fakes=-1)
    with pytest.raises(DataError, match="minimum_honest at least 1"):
        secure_sum([sent], minimum_honest=0)
