"""Probes of a model: run once for all its updates, as many as its passes allow, and anew after a change."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from seepage.core.types import Batch, Broadcast, Exchange, InputSpec, Knowledge, LocalTraining, Modality
from seepage.labels import infer_label_counts
from seepage.labels.evidence import PROBE_OPERATIONS, affordable_probes, gather_evidence
from seepage.protocol import local_update

SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 4, 4), num_classes=3)
KNOWN = Knowledge(input=SPEC)


class Counting(nn.Module):
    """Counts the examples that pass through it."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        self.dense, self.head, self.seen = nn.Linear(16, 8), nn.Linear(8, 3, bias=bias), 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return self.head(self.dense(x.flatten(1)).relu())


def exchange(model: nn.Module, labels: Sequence[int], seed: int) -> Exchange:
    torch.manual_seed(seed)
    batch = Batch(torch.rand(len(labels), 1, 4, 4), torch.tensor(labels))
    update = local_update(Broadcast(model), batch, LocalTraining())
    return Exchange(broadcast=Broadcast(model), update=update, clients=(0,))


def test_probes_run_once_for_all_updates_of_a_model_and_anew_after_a_change() -> None:
    torch.manual_seed(0)
    model = Counting()
    sent = [exchange(model, [0, 2, 2, 1], seed) for seed in range(3)]
    model.seen = 0
    first = infer_label_counts(sent[0], KNOWN)
    once = model.seen
    assert once > 256
    later = [infer_label_counts(one, KNOWN) for one in sent[1:]]
    assert model.seen == once
    assert [found.counts.tolist() for found in (first, *later)] == [[1, 1, 2]] * 3
    before = gather_evidence(sent[0], KNOWN).mean_prediction()
    with torch.no_grad():
        model.head.weight.mul_(2)
    assert not torch.equal(gather_evidence(sent[0], KNOWN).mean_prediction(), before)
    other = Knowledge(input=SPEC, seed=1)
    assert not torch.equal(gather_evidence(sent[0], other).mean_prediction(), before)


def test_the_label_of_one_example_needs_one_probe_where_there_is_a_bias() -> None:
    torch.manual_seed(0)
    model, bare = Counting(), Counting(bias=False)
    for label in range(3):
        one, without = exchange(model, [label], label), exchange(bare, [label], label)
        assert infer_label_counts(one, KNOWN).counts.argmax() == label
        assert infer_label_counts(without, KNOWN).counts.argmax() == label
    model.seen = bare.seen = 0
    with torch.no_grad():
        model.head.weight.add_(0.0), bare.head.weight.add_(0.0)
    infer_label_counts(one, KNOWN), infer_label_counts(without, KNOWN)
    assert model.seen < 16 and bare.seen > 256  # tracing the layers takes a few


def test_probes_are_as_many_as_passes_through_a_convolution_allow() -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Flatten(), nn.Linear(8 * 16, 3))
    products = 16 * 8 * 9 + 8 * 16 * 3  # 16 places, 8 filters of 9 weights; then the dense layer
    assert affordable_probes(KNOWN, model) == PROBE_OPERATIONS // products
