"""Whole batches of an encoder, where no sentence can be grown: tokens, links, sentences, proof."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks.text.assembling import sentences
from seepage.attacks.text.growing import Reader
from seepage.attacks.text.links import Links
from seepage.attacks.text.places import places_of
from seepage.core.errors import NotApplicable
from seepage.core.types import InputSpec
from seepage.models.blocks import Attention, attention_of, read_at

MOST_CANDIDATES = 400
"""Links are (heads, n, n). Cost: with more candidates minutes and gigabytes are needed."""
THINNINGS = 3
"""Times that the weakest half of the surplus over the rank is put aside. Cost: a reading each."""
UNIFORM = 0.05
"""How far the weights of attention are from equal, relatively, at least: below, links drown in rounding. No
plateau test yet."""


def read_encoder(
    first: Reader, second: Reader, tensors: Mapping[str, Tensor], spec: InputSpec
) -> tuple[Tensor, list[str]]:
    """(m, length) token ids of proven sentences, and what there is to say about them."""
    model = first.model
    attention = attention_of(model, 0)
    if not all(f"{name}.weight" in tensors for name in (attention.query, attention.key)):
        raise NotApplicable(
            "the update has no gradients of the first block's queries and keys, from which an encoder's "
            "sentences are put together: 'embedding_rows' reads its tokens where these are trained."
        )
    if not any(f"{attention.query}.weight" in point.weights for point in first.points):
        raise NotApplicable(
            "the first block's queries do not read what the block reads, as behind MobileBERT's bottleneck, "
            "so that no sentence can be put together: 'embedding_rows' reads its tokens, 'tag' searches."
        )
    found = places_of(first, tensors, spec)
    if len(found) == 0 and (even := _evenness_of_any(first, attention, spec)) < UNIFORM:
        raise NotApplicable(
            f"the first block attends to all tokens alike (to {even:.1g}), as after random initialisation, "
            "and its gradient is nearly that of a single token: 'embedding_rows' reads which words there are."
        )
    if not 0 < len(found) <= MOST_CANDIDATES:
        raise NotApplicable(
            f"{len(found)} tokens at their places fit the first block's gradient, which is "
            f"{'nothing to go on' if len(found) == 0 else 'more than can be told apart'}: attack smaller "
            "batches, or clients that train the embeddings."
        )
    notes = [f"{int(found.certain.sum())} of {len(found)} tokens have their place by the embeddings' rows."]
    for thinning in range(THINNINGS + 1):
        links = Links(model, attention, tensors, found)
        strengths = links.strengths()
        surplus = (len(found) - links.rank + 1) // 2
        own = strengths.norm(dim=1).masked_fill(found.certain, torch.inf)
        if surplus <= 0 or thinning == THINNINGS or int(own.isfinite().sum()) <= surplus:
            break
        sure = strengths.norm(dim=1)[found.certain]
        weak = own < (sure.min() if len(sure) else own.max())
        out = (own.argsort().argsort() < surplus) & weak
        if not bool(out.any()):
            break
        found = found.only(~out)
    ids = sentences(second, found, strengths, spec.shape[0])
    if len(ids) == 0 and (even := _evenness(model, attention, found.features)) < UNIFORM:
        notes.append(
            f"No sentence was found: the first block attends to all tokens alike (to {even:.1g}), as after "
            "random initialisation, so that its gradients do not tell which tokens stand together."
        )
    return ids, notes


def _evenness_of_any(first: Reader, attention: Attention, spec: InputSpec) -> float:
    """Of one text of as many different tokens as it has places."""
    device = next(first.model.parameters()).device
    some = torch.arange(spec.shape[0], device=device)[None] % int(spec.vocabulary or 1)
    (features,) = read_at(first.model, first.points[:1], input_ids=some)
    return _evenness(first.model, attention, features.flatten(0, -2).double())


def _evenness(model: nn.Module, attention: Attention, features: Tensor) -> float:
    """The largest relative distance of a weight of attention from the mean, over heads."""
    query, key = (model.get_submodule(name) for name in (attention.query, attention.key))

    def headed(layer: Any) -> Tensor:
        made = features @ layer.weight.detach().double().T + layer.bias.detach().double()
        heads: Tensor = made.reshape(len(features), attention.heads, -1).transpose(0, 1)
        return heads

    queries, keys = headed(query), headed(key)
    weights = (queries @ keys.transpose(1, 2) / queries.shape[2] ** 0.5).softmax(dim=2)
    return float((weights * len(features) - 1).abs().mean())
