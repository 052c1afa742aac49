"""Pass, alter, withhold: what leaves is measured again, and logs hold counts alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from seepage.core.errors import SpecError
from seepage.core.types import Batch, Broadcast, LocalTraining
from seepage.gating import Gatekeeper, gate
from seepage.gating.middle import gate_in_audit
from seepage.protocol import client

BATCH = Batch(torch.rand(4, 9, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0]))
FAST = {"budget": 0.05, "advice": False}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(9, 60), nn.ReLU(), nn.Linear(60, 3))


def test_what_leaks_is_withheld_and_what_does_not_passes() -> None:
    model = net()
    sent = client(LocalTraining())(Broadcast(model), BATCH)
    keeper = Gatekeeper("withhold", FAST)
    assert keeper.decide(model, sent, BATCH) is None
    assert keeper.log == ["gate: block, 4 of 4 examples exposed", "withheld"]
    allowed = Gatekeeper("withhold", {**FAST, "threshold": 1.0})
    assert allowed.decide(model, sent, BATCH) is sent


def test_noise_is_raised_until_the_same_attacks_recover_nothing() -> None:
    model = net()
    sent = client(LocalTraining())(Broadcast(model), BATCH)
    altered = Gatekeeper("noise", FAST).decide(model, sent, BATCH)
    assert altered is not None and altered is not sent
    assert gate(model, altered, BATCH, **FAST).exposed == []


def test_a_batch_that_is_exposed_whole_cannot_be_dropped() -> None:
    model = net()
    sent = client(LocalTraining())(Broadcast(model), BATCH)
    assert Gatekeeper("drop", FAST).decide(model, sent, BATCH) is None


def test_weights_are_altered_or_withheld() -> None:
    model = net()
    received = {n: t.clone() for n, t in model.state_dict().items()}
    change = client(LocalTraining())(Broadcast(model), BATCH).tensors
    trained = {n: received[n] - 0.1 * change[n] for n in received}
    local = LocalTraining(algorithm="fedavg", lr=0.1)
    assert Gatekeeper("withhold", {**FAST, "local": local}).weights(model, received, trained, BATCH) is None
    noisy = Gatekeeper("noise", {**FAST, "local": local}).weights(model, received, trained, BATCH)
    assert noisy is not None and not torch.equal(noisy["0.weight"], trained["0.weight"])
    with pytest.raises(SpecError, match="withhold, drop, noise"):
        Gatekeeper("shred")  # type: ignore[arg-type]


def test_the_gate_as_a_defense_sends_what_is_left_and_names_its_number() -> None:
    """An update of the examples that it kept, number by number; of none where all are exposed."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3))
    mine = Batch(torch.randn(12, 12), torch.randint(3, (12,)))
    train = client(LocalTraining())
    exposed = set(gate(net, None, mine, quick=True).exposed)
    assert 0 < len(exposed) < 12
    sent = gate_in_audit()(Broadcast(net), mine, train)
    assert sent.num_examples is not None and 0 < sent.num_examples <= 12 - len(exposed)
    kept = mine
    while out := set(gate(net, None, kept, quick=True).exposed):
        kept = kept.select(torch.tensor([i for i in range(len(kept)) if i not in out]))
    assert sent.num_examples == len(kept)
    for name, tensor in train(Broadcast(net), kept).tensors.items():
        assert torch.equal(sent.tensors[name], tensor)
    wide = nn.Sequential(nn.Linear(12, 200), nn.ReLU(), nn.Linear(200, 3))
    nothing = gate_in_audit()(Broadcast(wide), mine.select(slice(4)), train)
    assert nothing.num_examples == 0 and not any(t.any() for t in nothing.tensors.values())
