"""Single tokens out of the gradients of planted feed-forward layers.

A bin is the difference of two neighbouring rows' gradients: the sum of s x over the tokens between their
thresholds. A token that is alone in a bin shows its features x, and with them in which bins of the other
blocks it is: there it is taken away, which lays others bare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.attacks.text.growing import VOCABULARY_CHUNK
from seepage.attacks.text.planting import Planted, fitted_to
from seepage.models.anatomy import Dense, anatomy_of
from seepage.models.blocks import Point, blocks_of, read_at

RATIO = 0.1
"""How much nearer than the next one a token must lie. Tested:
test_constants_of_crafted_texts_lie_on_a_plateau."""
NEAR = 0.1
"""And at most how far from what was read, as a share of its length. Tested:
test_constants_of_crafted_texts_lie_on_a_plateau."""
ROUNDS = 12
"""Of taking away; each lays others bare, and five were enough in all that was tried. Tested:
test_constants_of_crafted_texts_lie_on_a_plateau."""
SAME = 1e-3
"""Angle between two readings of one token. Tested: test_constants_of_crafted_texts_lie_on_a_plateau."""
SAME_CODE = 1e-2
"""Difference between two codes of one token, as a share of their length. Tested:
test_constants_of_crafted_texts_lie_on_a_plateau."""
_ROUNDING = 30.0
"""Times the rounding of a threshold's gradient: a difference between two that is no longer is nobody's.
Tested: test_constants_of_crafted_texts_lie_on_a_plateau."""


@dataclass(frozen=True)
class Tokens:
    """n tokens that were read: which, where, and the code of the text so far, in units of values."""

    ids: Tensor
    places: Tensor
    codes: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def only(self, kept: Tensor) -> Tokens:
        """Those of this mask."""
        return Tokens(self.ids[kept], self.places[kept], self.codes[kept])

    def and_also(self, more: Tokens) -> Tokens:
        """Both."""
        return Tokens(*(torch.cat([getattr(self, n), getattr(more, n)]) for n in ("ids", "places", "codes")))

    def new(self, known: Tokens) -> Tensor:
        """(n,) bool: neither among `known` nor here before, but for rounding of the code."""
        both = known.and_also(self)
        same = (both.ids[:, None] == both.ids) & (both.places[:, None] == both.places)
        same &= torch.cdist(both.codes, both.codes) <= SAME_CODE * both.codes.norm(dim=1, keepdim=True)
        return ~same.tril(-1).any(dim=1)[len(both) - len(self) :]


class Bins:
    """The bins of every planted block, and what has been read of them."""

    def __init__(self, model: nn.Module, tensors: Mapping[str, Tensor], planted: Planted) -> None:
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.model, self.planted = model, planted
        parts = [anatomy_of(model, block) for block in planted.blocks]
        layers = [part.first for part in parts]
        # what comes back is as small as the way on, which differs between blocks
        back = [float(part.second.rows[:, 0].double().norm()) for part in parts]
        each = [
            torch.cat([layer.gradient(tensors, names), _bias(layer, tensors, names)[:, None]], dim=1).double()
            / size
            for layer, size in zip(layers, back, strict=True)
        ]
        # (blocks, bins, width + 1): the last bin has all tokens above the last threshold
        self.left = torch.stack([g - torch.cat([g[1:], torch.zeros_like(g[:1])]) for g in each])
        rounding = max(torch.finfo(tensors[names[id(layer.module.weight)]].dtype).eps for layer in layers)
        self.noise = _ROUNDING * rounding * torch.stack([g.norm(dim=1) for g in each])
        self.rows = torch.stack([layer.rows[0].double() for layer in layers])  # (blocks, width)
        biases = [layer.bias for layer in layers]
        self.steps = torch.stack([-b.double() for b in biases if b is not None])  # (blocks, bins), rising

    def single(self) -> Tensor:
        """(n, width + 1): what may be one token's s [x, 1], for |x| is known; each shown once."""
        full = self.left[self.left.norm(dim=2) > self.noise]
        length = full[:, :-1].norm(dim=1) / full[:, -1].abs()
        least, most = self.planted.lengths
        return full[(length >= least) & (length <= most)]

    def take(self, read: Tensor) -> None:
        """Take (n, width + 1) away from every block's bin that holds these tokens."""
        readings = (read[:, :-1] / read[:, -1:]) @ self.rows.T
        where = torch.searchsorted(self.steps, readings.T.contiguous()) - 1
        for left, number in zip(self.left, where.clamp_min(0), strict=True):
            left.index_add_(0, number, -read)


def _bias(layer: Dense, tensors: Mapping[str, Tensor], names: Mapping[int, str]) -> Tensor:
    return tensors[names[id(layer.module.bias)]].detach()


def read_tokens(bins: Bins, length: int, vocabulary: int) -> Tokens:
    """All tokens that can be told, over rounds of taking away what was found."""
    none = torch.zeros(0, dtype=torch.long, device=bins.left.device)
    found = Tokens(none, none, bins.left.new_zeros(0, len(bins.planted.code)))
    tried = bins.left.new_zeros(0, bins.left.shape[2])
    for _ in range(ROUNDS):
        read = _untried(bins.single(), tried)
        if len(read) == 0:
            break
        tried = torch.cat([tried, read])
        tokens, sure = _named(bins, read, length, vocabulary)
        new = tokens.new(found)
        if not bool(new.any()):
            break
        found = found.and_also(tokens.only(new))
        bins.take(read[sure][new])
    return found


def _untried(read: Tensor, tried: Tensor) -> Tensor:
    """Without what another block shows as well, and without what was tried before."""
    unit = torch.cat([tried, read])
    unit = unit / unit.norm(dim=1, keepdim=True)
    before = ((unit @ unit.T) > 1 - SAME**2 / 2).tril(-1).any(dim=1)
    return read[~before[len(tried) :]]


@torch.no_grad()
def _named(bins: Bins, read: Tensor, length: int, vocabulary: int) -> tuple[Tokens, Tensor]:
    """Tokens whose features (n, width + 1) are multiples of, and (n,) where there is one."""
    model, planted = bins.model, bins.planted
    point = [Point(f"{blocks_of(model)[0]}.0", (), transposed=False)]
    off = torch.ones(read.shape[1] - 1, dtype=torch.bool, device=read.device)
    off[planted.code] = False
    x = read[:, :-1] / read[:, -1:]
    unit = _centred(x[:, off].float())
    best = x.new_full((2, len(x)), -1.0, dtype=torch.float32)  # cosines, the best two
    which = torch.zeros(len(x), dtype=torch.long, device=x.device)
    place = torch.zeros_like(which)
    every = torch.arange(vocabulary, device=x.device)
    rows = torch.arange(len(x), device=x.device)
    for position in range(length):
        for some in every.split(VOCABULARY_CHUNK):
            at = torch.full((len(some), 1), planted.begin + position, device=x.device)
            (features,) = read_at(model, point, input_ids=some[:, None], position_ids=at)
            cosine = unit @ _centred(features[:, 0, off]).T  # (n, some)
            top, index = cosine.max(dim=1)
            cosine[rows, index] = -1.0
            better = top > best[0]
            which = torch.where(better, some[index], which)
            place = torch.where(better, position, place)
            best = torch.cat([best, torch.stack([top, cosine.amax(dim=1)])]).topk(2, dim=0).values
    (base,) = read_at(model, point, input_ids=which[:, None], position_ids=planted.begin + place[:, None])
    base = base[:, 0].double()
    fitted, lies = fitted_to(base, x, off)
    second = (1 - best[1].double().square()).clamp_min(0).sqrt()
    sure = (lies <= NEAR) & (lies <= RATIO * second)
    code = (fitted - base)[:, planted.code] / planted.gain
    return Tokens(which[sure], place[sure], code[sure]), sure


def _centred(features: Tensor) -> Tensor:
    each = features - features.mean(dim=1, keepdim=True)
    unit: Tensor = each / each.norm(dim=1, keepdim=True).clamp_min(torch.finfo(each.dtype).tiny)
    return unit
