"""What one step of Adam leaves of a gradient."""

from __future__ import annotations

import pytest
import torch
from tests.plateaus import scaled
from torch import nn

from seepage.core.errors import NotApplicable
from seepage.core.types import Batch, Broadcast, Exchange, InputSpec, Knowledge, LocalTraining, Modality
from seepage.protocol import local_update
from seepage.protocol.plainly import plainly

SPEC = InputSpec(modality=Modality.TABULAR, shape=(6,), num_classes=3)


def read(seed: int, dtype: torch.dtype) -> float | None:
    """Relative error of the gradient that is read back from a first step; None where it is refused."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)
    batch = Batch(torch.randn(4, 6, dtype=dtype), torch.tensor([0, 1, 2, 0]))
    true = local_update(Broadcast(model), batch, LocalTraining()).tensors
    local = LocalTraining(algorithm="fedavg", optimizer="adam", lr=1e-3)
    sent = local_update(Broadcast(model), batch, local)
    exchange = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))
    try:
        (found,), _, _ = plainly([exchange], Knowledge(input=SPEC, local=local))
    except NotApplicable:
        return None
    apart = torch.cat([(found.update.tensors[name] - t).flatten() for name, t in true.items()])
    return float(apart.norm() / torch.cat([t.flatten() for t in true.values()]).norm())


@pytest.mark.parametrize("factor", [0.1, 1.0, 10.0])
def test_what_counts_as_read_lies_on_a_plateau(factor: float) -> None:
    """In float64 the gradient comes back, in float32 nothing but signs does, wherever the line is drawn."""
    with scaled("seepage.protocol.plainly:_READ", factor):
        for seed in (96_011, 96_012, 96_013):
            error = read(seed, torch.float64)
            assert error is not None and error < 1e-4
            assert read(seed, torch.float32) is None
