"""Crafted blocks show more tokens than the model is wide, and say where they cannot be crafted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.attacks.text.setting import CLASSES, as_set
from tests.models.families import built, picture_model, picture_spec, spec, texts
from torch import Tensor, nn

from seepage import guard
from seepage.attacks.text.bins import Bins, Tokens, read_tokens
from seepage.attacks.text.chaining import Carried, chained, gathered
from seepage.attacks.text.decepticons import decepticons
from seepage.attacks.text.exact_text import exact_text
from seepage.attacks.text.planting import Planted
from seepage.core.errors import NotApplicable
from seepage.core.types import PADDING, Batch, Broadcast, Exchange, Knowledge, LocalTraining, Reconstruction
from seepage.guardian.check import Verdict
from seepage.models.anatomy import anatomy_of
from seepage.models.blocks import Point, read_at
from seepage.models.loading import build_model
from seepage.protocol import local_update

LENGTH, COUNT = 15, 8
DEEP: dict[str, dict[str, Any]] = {
    "gpt2": {"n_layer": 5},
    "opt": {"num_hidden_layers": 5, "ffn_dim": 128},
    "bert": {"num_hidden_layers": 5, "intermediate_size": 128},
    "roberta": {"num_hidden_layers": 5, "intermediate_size": 128},
    "distilbert": {"n_layers": 5, "hidden_dim": 128},
}


def known_of(model: nn.Module, *, loss: str, length: int = LENGTH) -> tuple[nn.Module, Knowledge]:
    described = spec(num_classes=1 if loss == "next_token" else CLASSES, length=length)
    return build_model(model, described), Knowledge(
        input=described, loss=loss, local=LocalTraining(loss=loss)
    )


def answered(model: nn.Module, known: Knowledge, ids: Tensor) -> Exchange:
    """What comes back of the crafted model."""
    crafted = decepticons().next_model(model, [], known)
    assert crafted is not None and known.local is not None
    batch = Batch(ids, torch.arange(len(ids)) % known.input.num_classes)
    update = local_update(Broadcast(crafted.model), batch, known.local)
    return Exchange(broadcast=Broadcast(crafted.model), update=update, clients=(0,), secret=crafted.secret)


def attacked(family: str, ids: Tensor, *, loss: str) -> Reconstruction:
    task = "CausalLM" if loss == "next_token" else "SequenceClassification"
    model, known = known_of(built(family, task, **DEEP[family]), loss=loss)
    return decepticons().run([answered(model, known, ids)], known)


@pytest.mark.parametrize(
    ("family", "loss"),
    [
        ("gpt2", "next_token"),
        ("opt", "next_token"),
        ("gpt2", "cross_entropy"),
        ("bert", "cross_entropy"),
        ("roberta", "cross_entropy"),
        ("distilbert", "cross_entropy"),
    ],
)
def test_three_times_as_many_tokens_as_the_width_are_read_and_proven(family: str, loss: str) -> None:
    ids = texts(COUNT, length=LENGTH)
    assert int((ids != PADDING).sum()) > 2.5 * 32
    found = attacked(family, ids, loss=loss)
    assert as_set(found.values) == as_set(ids)
    assert found.complete and found.claimed is not None and bool(found.claimed.all())


def test_honest_weights_hide_them() -> None:
    ids = texts(COUNT, length=LENGTH)
    model, known = known_of(built("gpt2", "CausalLM", n_layer=5), loss="next_token")
    batch = Batch(ids, torch.zeros(COUNT, dtype=torch.long))
    update = local_update(Broadcast(model), batch, LocalTraining(loss="next_token"))
    with pytest.raises(NotApplicable, match="no gap in its spectrum"):
        exact_text().run([Exchange(broadcast=Broadcast(model), update=update, clients=(0,))], known)


def test_bins_hold_the_features_that_the_model_computes() -> None:
    """Known answer: the sum over tokens between two thresholds, from a run of the model on the true texts."""
    ids = texts(3, length=LENGTH)
    model, known = known_of(built("gpt2", "CausalLM", n_layer=3), loss="next_token")
    exchange = answered(model, known, ids)
    planted = exchange.secret
    assert isinstance(planted, Planted)
    bins = Bins(exchange.broadcast.model, exchange.update.tensors, planted)
    points = [Point(anatomy_of(exchange.broadcast.model, b).first.name, (), transposed=False) for b in (0, 1)]
    there = ids != PADDING
    read = read_at(
        exchange.broadcast.model, points, input_ids=ids.masked_fill(~there, 0), attention_mask=there.long()
    )
    assert torch.allclose(read[0], read[1], atol=1e-4)
    predicting = there.clone()
    predicting[torch.arange(3), there.sum(dim=1) - 1] = False
    features = read[0][predicting].double()
    for block in (0, 1):
        number = torch.searchsorted(bins.steps[block], features @ bins.rows[block]) - 1
        filled = bins.left[block].norm(dim=1) > bins.noise[block]
        assert set(number.tolist()) == set(filled.nonzero().squeeze(1).tolist())
        for one, x in zip(number.tolist(), features, strict=True):
            if int((number == one).sum()) == 1:
                sent = bins.left[block, one]
                assert torch.allclose(sent[:-1] / sent[-1], x, atol=1e-2 * float(x.abs().max()))


@pytest.mark.parametrize(("family", "loss"), [("gpt2", "next_token"), ("bert", "cross_entropy")])
def test_a_token_that_was_not_read_is_filled_in_by_the_codes_of_the_others(family: str, loss: str) -> None:
    ids = texts(3, length=LENGTH)
    task = "CausalLM" if loss == "next_token" else "SequenceClassification"
    model, known = known_of(built(family, task, **DEEP[family]), loss=loss)
    exchange = answered(model, known, ids)
    crafted, planted = exchange.broadcast.model, exchange.secret
    tokens = read_tokens(Bins(crafted, exchange.update.tensors, planted), LENGTH, 60)
    put = chained if family == "gpt2" else gathered
    carried = Carried(crafted, planted, 60)
    whole = put(tokens, carried, LENGTH)
    missing = tokens.only(~((tokens.ids == ids[0, 4]) & (tokens.places == 4)))
    assert len(missing) == len(tokens) - 1
    assert as_set(put(missing, carried, LENGTH)) == as_set(whole)
    two = missing.only(~((missing.ids == ids[0, 5]) & (missing.places == 5)))
    assert as_set(put(two, carried, LENGTH)) != as_set(whole)


def test_nothing_is_claimed_where_the_update_holds_another_text_as_well() -> None:
    ids = texts(3, length=LENGTH)
    model, known = known_of(built("bert", "SequenceClassification", **DEEP["bert"]), loss="cross_entropy")
    exchange = answered(model, known, ids)
    assert known.local is not None
    other = local_update(
        exchange.broadcast, Batch(texts(1, seed=7, length=LENGTH), torch.zeros(1).long()), known.local
    )
    tensors = {name: tensor + 0.1 * other.tensors[name] for name, tensor in exchange.update.tensors.items()}
    found = decepticons().run([replace(exchange, update=replace(exchange.update, tensors=tensors))], known)
    assert found.complete is False and found.claimed is not None and not found.claimed.any()


def test_a_text_with_a_hole_is_shown_and_not_claimed() -> None:
    """Two blocks of a classifier leave one layer to be read: too few bins for so many tokens."""
    ids = texts(COUNT, length=LENGTH)
    model, known = known_of(built("bert", "SequenceClassification"), loss="cross_entropy")
    found = decepticons().run([answered(model, known, ids)], known)
    assert found.claimed is not None and not found.claimed.any() and not found.complete


@pytest.mark.parametrize(
    ("family", "task", "loss", "why"),
    [
        ("llama", "CausalLM", "next_token", "GPT-2's, OPT's and BERT's"),
        ("gpt_neox", "CausalLM", "next_token", "GPT-2's, OPT's and BERT's"),
    ],
)
def test_blocks_of_another_build_are_refused_in_one_sentence(
    family: str, task: str, loss: str, why: str
) -> None:
    model, known = known_of(built(family, task), loss=loss)
    with pytest.raises(NotApplicable, match=why):
        decepticons().next_model(model, [], known)


def test_weights_pictures_and_adapters_are_refused_in_one_sentence() -> None:
    model, known = known_of(built("gpt2", "CausalLM"), loss="next_token")
    averaged = replace(known, local=LocalTraining(algorithm="fedavg", lr=0.1))
    with pytest.raises(NotApplicable, match="FedSGD"):
        decepticons().check(model, averaged)
    with pytest.raises(NotApplicable, match="reads texts"):
        decepticons().check(picture_model("vit"), Knowledge(input=picture_spec()))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(NotApplicable, match="do not train"):
        decepticons().check(model, known)


def test_no_tokens_make_no_text() -> None:
    model, known = known_of(built("gpt2", "CausalLM", n_layer=3), loss="next_token")
    exchange = answered(model, known, texts(2, length=LENGTH))
    none = torch.zeros(0, dtype=torch.long)
    empty = Tokens(none, none, torch.zeros(0, 8, dtype=torch.float64))
    carried = Carried(exchange.broadcast.model, exchange.secret, 60)
    assert chained(empty, carried, LENGTH).shape == gathered(empty, carried, LENGTH).shape == (0, LENGTH)


@pytest.mark.parametrize("family", list(DEEP))
def test_a_client_that_looks_at_the_crafted_model_alone_sees_the_trap(family: str) -> None:
    """One row over and over with a ladder of biases; the honest model that it was made of is clean."""
    model, known = known_of(built(family, "SequenceClassification", **DEEP[family]), loss="cross_entropy")
    crafted = decepticons().next_model(model, [], known)
    assert crafted is not None
    report = guard(crafted.model)
    assert report.verdict is Verdict.TRAP and report.detector == "identical_rows"
    assert report.layer is not None and report.layer in {
        anatomy_of(crafted.model, block).first.name for block in crafted.secret.blocks
    }
    assert guard(model).verdict is Verdict.CLEAN


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_a_client_that_has_the_model_of_the_round_before_is_warned(family: str) -> None:
    model, known = known_of(built(family, "SequenceClassification", **DEEP[family]), loss="cross_entropy")
    crafted = decepticons().next_model(model, [], known)
    assert crafted is not None
    assert guard(crafted.model, previous=model).verdict in (Verdict.SUSPICIOUS, Verdict.TRAP)
