"""Which tokens stand at which places of an encoder's batch.

A token at a place is a candidate where its features lie in the first block's span. With words that occur more
than once, "rectangles" come in: v at p, w at p and w at q put v at q into the span as well. Where clients
train the embeddings, the norm behind them tells: its gradient has nothing along what it normalises, so the
row of a word that stands at one place only is orthogonal to the sum of the embeddings there, and to no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.attacks.text.embedding_rows import embeddings_of, moved_rows
from seepage.attacks.text.growing import VOCABULARY_CHUNK, Reader
from seepage.core.errors import NotApplicable
from seepage.core.types import InputSpec
from seepage.models.blocks import Point, read_at
from seepage.models.hooks import modules_of

ORTHOGONAL = 2e-5
"""Cosine. Derived: rounding leaves 1e-6, and what is not orthogonal has 1 / sqrt(width), 0.05 in MiniLM."""
NOTHING = 1e-4
"""Share of a row that is left when all of its words are known. Derived: rounding leaves 1e-6."""


@dataclass(frozen=True)
class Places:
    """Candidates: tokens, places, which are certain, all (n,), and what the first block reads of them."""

    tokens: Tensor
    places: Tensor
    certain: Tensor
    features: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def only(self, kept: Tensor) -> Places:
        """Those of this mask or order."""
        return Places(self.tokens[kept], self.places[kept], self.certain[kept], self.features[kept])


def places_of(first: Reader, tensors: Mapping[str, Tensor], spec: InputSpec) -> Places:
    """All tokens at all places that the first block may have read, thinned out by the embeddings' rows."""
    model, length = first.model, spec.shape[0]
    found = embeddings_of(model, spec)
    device = next(model.parameters()).device
    every = torch.arange(int(spec.vocabulary or 0), device=device)
    rows = None if found.tied else tensors.get(found.tokens)
    if rows is not None:
        try:
            every = every[moved_rows(rows.detach(), tied=False, most=0)[: len(every)]]
        except NotApplicable:  # noise, or weight decay: the span decides alone
            rows = None
    kept: list[Places] = []
    for some in every.split(max(1, VOCABULARY_CHUNK // length)):
        read = read_at(model, first.points, input_ids=some[:, None].expand(-1, length).contiguous())
        flat = [features.flatten(0, 1)[:, None] for features in read]
        where = first.passed(flat).nonzero().squeeze(1)
        certain = torch.zeros(len(where), dtype=torch.bool, device=device)
        kept.append(Places(some[where // length], where % length, certain, flat[0][where, 0].double()))
    all_of_them = Places(*(torch.cat([getattr(k, name) for k in kept]) for name in _FIELDS))
    places = None if found.positions is None else tensors.get(found.positions)
    if rows is None or places is None:
        return all_of_them
    sums = _normalised(model, all_of_them, length)
    if sums is None or sums.shape[1] != rows.shape[1]:
        return all_of_them
    return _located(all_of_them, sums, rows.detach().double(), places.detach().double()[found.begin :])


_FIELDS = ("tokens", "places", "certain", "features")


def _normalised(model: nn.Module, found: Places, length: int) -> Tensor | None:
    """(n, width) of length 1: what the first norm of the model takes away of each candidate's gradient."""
    norms = modules_of(model, nn.LayerNorm)
    name = next(iter(norms), None)
    if name is None or len(found) == 0:
        return None
    sums: list[Tensor] = []
    step = max(1, VOCABULARY_CHUNK // length)
    for some, places in zip(found.tokens.split(step), found.places.split(step), strict=True):
        point = [Point(name, (), transposed=False)]
        (read,) = read_at(model, point, input_ids=some[:, None].expand(-1, length).contiguous())
        sums.append(read[torch.arange(len(some), device=some.device), places].double())
    each = torch.cat(sums)
    each = each - each.mean(dim=1, keepdim=True)
    unit: Tensor = each / each.norm(dim=1, keepdim=True)
    return unit


def _located(found: Places, sums: Tensor, rows: Tensor, places: Tensor) -> Places:
    """Words at one place, and places with one open word, by turns, until nothing more is learnt.

    `rows` of words and `places` are sums of the same unknown gradients, one for each true candidate.
    """
    words, index = found.tokens.unique(return_inverse=True)
    # what is left to explain: of each word, then of each place
    left = torch.cat([rows[words], places[: int(found.places.max()) + 1]])
    whole = left.norm(dim=1)
    of = torch.stack([index, len(words) + found.places])  # (2, n): both rows that a candidate adds to
    open_ones = torch.ones(len(found), dtype=torch.bool, device=rows.device)
    certain = torch.zeros_like(open_ones)
    for _ in range(len(found)):
        size = left.norm(dim=1)
        cosine = (left[of] * sums).sum(dim=2).abs() / size[of].clamp_min(torch.finfo(size.dtype).tiny)
        done = size <= NOTHING * whole
        open_ones &= ~(done[of[0]] | done[of[1]])
        side, which = ((cosine <= ORTHOGONAL) & open_ones).nonzero(as_tuple=True)
        if len(which) == 0:
            break
        best = int(cosine[side, which].argmin())
        row, candidate = of[side[best], which[best]], which[best]
        gradient = left[row].clone()
        left[of[:, candidate]] -= gradient
        open_ones &= (of != row).all(dim=0)
        certain[candidate] = True
    kept = certain | open_ones
    return Places(found.tokens[kept], found.places[kept], certain[kept], found.features[kept])
