"""The links between tokens are those of attention: strong inside a sentence, nothing between two."""

from __future__ import annotations

import torch
from tests.attacks.text.setting import exchange_of
from tests.models.families import built

from seepage.attacks.text.links import Links
from seepage.attacks.text.places import Places
from seepage.models.blocks import Point, attention_of, read_at


def test_known_tokens_are_linked_within_their_sentence_alone() -> None:
    ids = torch.tensor([[5, 7, 20, 9], [11, 12, 22, 8]])
    model = built("bert", "SequenceClassification", initializer_range=0.2)
    exchange, _ = exchange_of(model, ids, language_model=False)
    own, attention = exchange.broadcast.model, attention_of(exchange.broadcast.model, 0)
    (read,) = read_at(own, [Point(attention.query, (), transposed=False)], input_ids=ids)
    found = Places(
        ids.flatten(), torch.arange(4).repeat(2), torch.ones(8, dtype=torch.bool), read.flatten(0, 1).double()
    )
    strengths = Links(own, attention, exchange.update.tensors, found).strengths()
    together = torch.block_diag(torch.ones(4, 4), torch.ones(4, 4)).bool()
    assert float(strengths[together].min()) > 100 * float(strengths[~together].max())
