"""Texts out of single tokens that carry a code of their text (see `planting`).

A decoder's token at place p knows the mean of what the tokens 0 to p carried, c_p. So (p + 1) c_p less what
it carried itself is p c_{p-1}: its predecessor is the token whose code that is. A token that was not read is
filled in, for what it carried is the difference of its neighbours' codes. In an encoder all tokens of a text
have the same code, which is the mean over all of them: one that is missing is what the sum lacks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seepage.attacks.text.bins import Tokens
from seepage.attacks.text.growing import VOCABULARY_CHUNK
from seepage.attacks.text.planting import Planted
from seepage.core.types import PADDING
from seepage.models.anatomy import anatomy_of
from seepage.models.blocks import Point, read_at

LINK = 0.05
"""How far a code may lie from the one looked for, as a share of its length: rounding leaves 1e-3, and texts
that differ in one of 64 tokens lie 1 / 8 apart. Tested: test_constants_of_crafted_texts_lie_on_a_plateau."""


class Carried:
    """What a token at a place adds to its text's code."""

    def __init__(self, model: nn.Module, planted: Planted, vocabulary: int) -> None:
        self.model, self.vocabulary = model, vocabulary
        self.values, self.begin = planted.values.double(), planted.begin
        self.point = [Point(anatomy_of(model, 0).mixing[-1].name, (), transposed=False)]

    def by(self, ids: Tensor, places: Tensor) -> Tensor:
        """(n, c) of n tokens at their places."""
        at = self.begin + places[:, None]
        (read,) = read_at(self.model, self.point, input_ids=ids[:, None], position_ids=at)
        return read[:, 0].double() @ self.values.to(read.device).T

    def token(self, wanted: Tensor, place: int) -> tuple[Tensor, Tensor]:
        """(n,) the token at this place that carries (n, c) most nearly, and (n,) how far it is from that."""
        every = torch.arange(self.vocabulary, device=wanted.device)
        each = torch.cat(
            [self.by(some, torch.full_like(some, place)) for some in every.split(VOCABULARY_CHUNK)]
        )
        far, ids = torch.cdist(wanted, each).min(dim=1)
        return ids, far / wanted.norm(dim=1)


def chained(tokens: Tokens, carried: Carried, length: int) -> Tensor:
    """(n, length) texts of a decoder: each token that is nobody's predecessor ends one."""
    texts: list[dict[int, Tensor]] = []  # by place, rows: token ids from the beginning
    own = carried.by(tokens.ids, tokens.places) if len(tokens) else tokens.codes
    followed: list[Tensor] = []
    for place in range(length):
        here = (tokens.places == place).nonzero().squeeze(1)
        begun = tokens.ids.new_full((len(here), length), PADDING)
        begun[:, place] = tokens.ids[here]
        ahead = (place + 1) * tokens.codes[here] - own[here]  # place times the code before
        texts.append({0: here, 1: begun})
        followed.append(torch.zeros(len(here), dtype=torch.bool, device=here.device))
        for row in range(len(here) if place else 0):
            _linked(texts, followed, tokens, carried, place, row, ahead[row])
    ends = [t[1][~over] for t, over in zip(texts, followed, strict=True)]
    return _longest(torch.cat(ends).unique(dim=0))


def _longest(texts: Tensor) -> Tensor:
    """Without those that another one shows all of, as where rounding parted one token's two readings."""
    there = texts != PADDING
    shown = ((texts[:, None] == texts) | ~there[:, None]).all(dim=2)  # [i, j]: all of i is in j
    return texts[~(shown & ~torch.eye(len(texts), dtype=torch.bool, device=texts.device)).any(dim=1)]


def _linked(
    texts: list[dict[int, Tensor]],
    followed: list[Tensor],
    tokens: Tokens,
    carried: Carried,
    place: int,
    row: int,
    ahead: Tensor,
) -> None:
    """Puts the beginning before one token, from the place before or, over a gap, from the one before that."""
    before, begun = texts[place - 1], texts[place][1]
    if len(before[0]):
        far = (place * tokens.codes[before[0]] - ahead).norm(dim=1) / ahead.norm()
        nearest = int(far.argmin())
        if float(far[nearest]) <= LINK:
            begun[row, :place] = before[1][nearest, :place]
            followed[place - 1][nearest] = True
            return
    if place == 1:
        ids, far = carried.token(ahead[None], 0)
        if float(far[0]) <= LINK:
            begun[row, 0] = ids[0]
        return
    earlier = texts[place - 2]
    if len(earlier[0]):
        ids, far = carried.token(ahead - (place - 1) * tokens.codes[earlier[0]], place - 1)
        nearest = int(far.argmin())
        if float(far[nearest]) <= LINK:
            begun[row, : place - 1] = earlier[1][nearest, : place - 1]
            begun[row, place - 1] = ids[nearest]
            followed[place - 2][nearest] = True


def gathered(tokens: Tokens, carried: Carried, length: int) -> Tensor:
    """(n, length) texts of an encoder: tokens of one code."""
    open_ones = torch.ones(len(tokens), dtype=torch.bool, device=tokens.ids.device)
    texts: list[Tensor] = []
    while bool(open_ones.any()):
        code = tokens.codes[open_ones][0]
        same = open_ones & ((tokens.codes - code).norm(dim=1) <= LINK * code.norm())
        open_ones &= ~same
        text = tokens.ids.new_full((length,), PADDING)
        text[tokens.places[same]] = tokens.ids[same]
        texts.append(_filled(text, tokens.codes[same].median(dim=0).values, carried))
    return _longest(torch.stack(texts)) if texts else tokens.ids.new_zeros(0, length)


def _filled(text: Tensor, code: Tensor, carried: Carried) -> Tensor:
    """With the one token that is missing, inside or behind, where there is one."""
    there = (text != PADDING).nonzero().squeeze(1)
    count = int(there.max()) + 1
    missing = sorted(set(range(count)) - set(there.tolist()))
    sum_of = carried.by(text[there], there).sum(dim=0)
    if len(missing) == 0 and float((count * code - sum_of).norm()) <= LINK * count * float(code.norm()):
        return text
    missing = missing or ([count] if count < len(text) else [])
    if len(missing) == 1:
        ids, far = carried.token(((len(there) + 1) * code - sum_of)[None], missing[0])
        if float(far[0]) <= LINK:
            text[missing[0]] = ids[0]
    return text
