"""Servers and networks that the gate was once blind to: each of these passed, or was not measured."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from seepage.attacks import ATTACKS
from seepage.core.types import (
    Batch,
    Broadcast,
    Exchange,
    InputSpec,
    Knowledge,
    LocalTraining,
    Modality,
)
from seepage.gating import gate
from seepage.gating.shares import LayerShares, layer_shares
from seepage.protocol import client

SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 6, 6), num_classes=4)


def private(count: int, seed: int = 2) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return Batch(torch.rand(count, 1, 6, 6, generator=generator), torch.arange(count) % 4)


def thresholds(responses: Tensor) -> Tensor:
    """(N,) biases of ReLUs that one example alone fires: between the two largest of (n, N)."""
    top = responses.sort(dim=0, descending=True).values
    return -(top[0] + top[1]) / 2


def test_a_convolution_that_covers_the_picture_is_a_dense_layer() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 50, 6), nn.ReLU(), nn.Flatten(), nn.Linear(50, 4))
    batch = private(6)
    with torch.no_grad():
        model[0].bias.copy_(thresholds(batch.inputs.flatten(1) @ model[0].weight.flatten(1).T))
    sent = client(LocalTraining())(Broadcast(model), batch).tensors
    rows = (sent["0.weight"].flatten(1) / sent["0.bias"][:, None])[sent["0.bias"] != 0]
    read = (torch.cdist(batch.inputs.flatten(1), rows).amin(dim=1) < 1e-3).nonzero().flatten().tolist()
    assert len(read) >= 4
    for quick in (True, False):
        assert set(read) <= set(gate(model, None, batch, spec=SPEC, quick=quick, advice=False).exposed)


@pytest.mark.parametrize("inplace", [False, True])
def test_an_activation_in_place_hides_nobody(inplace: bool) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.ReLU(inplace=inplace), nn.Linear(20, 4))
    batch = private(10)
    signals = layer_shares(model, batch, "cross_entropy")[0].signals
    silent = batch.inputs.flatten(1) @ model[1].weight.T + model[1].bias <= 0
    assert bool((signals[silent] == 0).all()) and bool((signals[~silent] != 0).all())


def test_frozen_layers_send_nothing_that_could_be_owned() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.ReLU(), nn.Linear(20, 4))
    model[1].requires_grad_(False)
    assert [one.name for one in layer_shares(model, private(3), "auto")] == ["3"]


def test_statistics_of_the_batch_are_those_of_the_pass() -> None:
    """In train mode a batch norm's running mean is not used, and the pass leaves it where it was."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 4))
    batch = private(8)
    with torch.no_grad():
        model[2].running_mean.copy_(-thresholds(model[1](batch.inputs.flatten(1))))  # a trap in eval mode
    kept = model[2].running_mean.clone()
    owned = {
        train: int(layer_shares(model, batch, "auto", train=train)[0].owned().sum())
        for train in (False, True)
    }
    assert owned[False] >= 25 and owned[True] == 0
    assert torch.equal(model[2].running_mean, kept)


def test_whoever_alone_passes_the_last_convolution_is_isolated() -> None:
    """Global pooling, one dense layer: no row shows anything, and all before it is one example's."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 4),
    )  # fmt: skip
    batch = private(6)
    assert gate(model, None, batch, spec=SPEC, quick=True).exposed == []
    with torch.no_grad():
        model[2].weight.copy_(model[2].weight[:1].expand(8, 8, 3, 3).clone())
        model[2].bias.zero_()
        peaks = model[2](model[1](model[0](batch.inputs)))[:, 0].amax(dim=(1, 2))
        order = peaks.sort(descending=True)
        model[2].bias.fill_(-float(order.values[:2].mean()))
    report = gate(model, None, batch, spec=SPEC, quick=True)
    assert report.exposed == [int(order.indices[0])]
    assert {e.how for e in report.exposures} == {"isolated"}


def test_numbers_that_an_example_has_for_itself_are_counted() -> None:
    signals = torch.tensor([[9.0, 0.0, 1.0], [1.0, 2.0, 1.0]])
    assert LayerShares("0", signals, inputs=5, places=True).alone().tolist() == [5, 5]


def test_a_search_in_a_small_batch_is_run_and_names_the_others() -> None:
    """No layer can be read, and a search has two pictures; what it has not reached yet is named as well."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.Sigmoid(), nn.Conv2d(16, 16, 3, padding=1), nn.Sigmoid(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 4, bias=False),
    )  # fmt: skip
    batch = private(2)
    seen = Exchange(
        broadcast=Broadcast(model), update=client(LocalTraining())(Broadcast(model), batch), clients=(0,)
    )
    found = ATTACKS["inverting_gradients"](steps=300).run([seen], Knowledge(input=SPEC)).values
    error = torch.cdist(batch.inputs.flatten(1), found.flatten(1)).square().amin(dim=1) / 36
    assert bool((-10 * error.log10() > 25).any())
    report = gate(model, None, batch, spec=SPEC, advice=False)
    assert report.exposed == [0, 1]


def tokens(count: int) -> Batch:
    generator = torch.Generator().manual_seed(3)
    return Batch(torch.randint(1, 60, (count, 8), generator=generator), torch.arange(count) % 2)


def small_gpt(language: bool) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=60, n_positions=8, n_embd=64, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, num_labels=2, pad_token_id=0, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    kind = transformers.GPT2LMHeadModel if language else transformers.GPT2ForSequenceClassification
    model: nn.Module = kind(config)
    return model


@pytest.mark.parametrize(("language", "count"), [(True, 2), (False, 1)])
def test_texts_that_can_be_read_are_named(language: bool, count: int) -> None:
    """A model of Hugging Face's as it is, given token ids: its output is no tensor."""
    report = gate(small_gpt(language), None, tokens(count), advice=False)
    assert report.answer == "block" and report.exposed == list(range(count))
    assert {"exact", "text"} & {e.how for e in report.exposures}
    assert report.words == 1.0 and "100% are known to be there" in report.text()


def test_rows_of_a_table_are_looked_for_by_what_reads_tables() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 2))
    rows = torch.randn(3, 6, generator=torch.Generator().manual_seed(1)).round(decimals=1)
    report = gate(model, None, Batch(rows, torch.tensor([0, 1, 1])), advice=False)
    assert report.exposed == [0, 1, 2]


def test_the_last_layer_tells_few_examples_apart() -> None:
    """Behind global pooling nothing else can be read, and its rows are never one example's alone."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 40, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(40, 10)
    )
    spec = InputSpec(modality=Modality.IMAGE, shape=(1, 6, 6), num_classes=10)
    generator = torch.Generator().manual_seed(1)
    for count, exposed in ((4, True), (30, False)):
        batch = Batch(torch.rand(count, 1, 6, 6, generator=generator), torch.arange(count) % 10)
        quick = gate(model, None, batch, spec=spec, quick=True)
        full = gate(model, None, batch, spec=spec, advice=False)
        assert bool(quick.exposed) == exposed
        assert set(full.exposed) <= set(quick.exposed)
    assert LayerShares("0", torch.eye(2), inputs=9).unmixable().tolist() == [False, False]


def test_an_update_that_breaks_an_attack_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server can send a model with which some solver fails: then nothing is known."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.ReLU(), nn.Linear(4, 4))
    batch = private(40)
    assert gate(model, None, batch, spec=SPEC, advice=False).answer == "pass"

    def breaks(*_args: object, **_options: object) -> None:
        raise torch.linalg.LinAlgError("the algorithm failed to converge")

    monkeypatch.setattr("seepage.attacks.reading.exact_extraction.ExactExtraction.run", breaks)
    report = gate(model, None, batch, spec=SPEC, advice=False)
    assert report.answer == "not measured" and "it broke off (" in report.text()


def test_a_layer_that_is_applied_twice_adds_up_over_both() -> None:
    """A row that one example has in one pass and another one in the second is nobody's."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.read, self.head = nn.Linear(2, 2, bias=False), nn.Linear(2, 2)
            with torch.no_grad():
                self.read.weight.copy_(torch.eye(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first, second = self.read(x[:, :2]).relu(), self.read(x[:, 2:]).relu()
            told: torch.Tensor = self.head(first + second)
            return told

    torch.manual_seed(0)
    # row 0: of the first example in the first half, of the second example in the second; row 1: the second's
    batch = Batch(torch.tensor([[1.0, -1.0, -1.0, -1.0], [-1.0, 1.0, 1.0, -1.0]]), torch.tensor([0, 1]))
    shares = layer_shares(Twice(), batch, "cross_entropy")
    assert [one.name for one in shares] == ["read", "head"]
    assert shares[0].places
    assert shares[0].alone().tolist() == [0, 2]
