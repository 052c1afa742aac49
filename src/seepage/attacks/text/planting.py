"""Weights that let a transformer's feed-forward layers show single tokens (Fowl et al. 2022, Decepticons).

The first block's attention looks at all tokens it may see alike, so that it writes their mean, projected at
random, into a few components of each token: a code of the text so far. Later blocks' attention writes
nothing. So every feed-forward part reads the same features x of a token: what it is, where it stands, and
the code. The first layer of each has one row m over and over, with thresholds in steps: row k reads
beta (m . x - b_k), and the difference of two neighbours' gradients holds the tokens between their
thresholds only (Fowl et al. 2021, Robbing the Fed). Each block measures another m, so that two tokens that
fall together in one block stand apart in the next.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.core.errors import NotApplicable
from seepage.core.types import PADDING, Knowledge
from seepage.models.anatomy import Anatomy, anatomy_of
from seepage.models.blocks import Point, blocks_of, read_at
from seepage.protocol.losses import NEXT_TOKEN, TOKEN_CLASS

CODE_SHARE = 4
"""One in so many components holds the code. No plateau test yet. With 6 or 8 one or two of eight texts are
lost in BERT 32 wide, and none is claimed; with 2 all are read."""
MEASURED = 2
"""Components of the code that a block measures: each block its own. No plateau test yet. With 1 all is read;
with 3 GPT-2 32 wide gives nothing, with 4 BERT loses one or two of eight texts."""
STEEPNESS = 2000.0
"""beta times the usual step between thresholds: an activation's slope goes from 0 to 1 within 6. Tested:
test_constants_of_crafted_texts_lie_on_a_plateau."""
QUIET = 1e-6
"""What a crafted feed-forward part may add to features, as a share of them: rounding of float32. Tested:
test_constants_of_crafted_texts_lie_on_a_plateau."""
SAMPLED = 8
"""Sampled tokens for each threshold. Tested: test_constants_of_crafted_texts_lie_on_a_plateau."""
_ALIKE = 1e-2
"""Share by which features may differ from what was planted: rounding leaves 1e-5, another build all of it.
Tested: test_constants_of_crafted_texts_lie_on_a_plateau."""
_PLACES = 8
"""Numbers that are tried for a text's first place. Tested:
test_constants_of_crafted_texts_lie_on_a_plateau."""


@dataclass(frozen=True)
class Planted:
    """What the server remembers of the model it sent."""

    blocks: tuple[int, ...]
    """Those whose feed-forward part has thresholds."""
    code: Tensor
    """(c,) components of the features that hold the code."""
    gain: float
    """What the mean of the values is multiplied by."""
    values: Tensor
    """(c, width): the projection of the first block's features."""
    begin: int
    """The number of the first place: RoBERTa counts from 2."""
    lengths: tuple[float, float]
    """Of the features of one token, the least and the greatest: a norm's own, but for what it adds to a
    variance."""


@torch.no_grad()
def plant(model: nn.Module, known: Knowledge, generator: torch.Generator) -> Planted:
    """Write the weights into the model."""
    count = len(blocks_of(model)[1])
    parts = [anatomy_of(model, block) for block in range(count)]
    per_token = known.loss in (NEXT_TOKEN, TOKEN_CLASS)
    # Where few places enter the loss, the last block hands its gradient to all of them.
    used = tuple(range(count if per_token else count - 1))
    first = parts[0]
    if any(parts[block].first.bias is None for block in used):
        raise NotApplicable(
            "the feed-forward layers have no bias to hold a threshold, as in Llama's kin: this attack crafts "
            "GPT-2's, OPT's and BERT's."
        )
    width = first.first.rows.shape[1]
    code = torch.randperm(width, generator=generator)[: width // CODE_SHARE]
    used = used[: max(1, len(code) // MEASURED)]
    values = torch.randn(len(code), width, generator=generator) / width**0.5
    sample = _sample(known, model, generator, SAMPLED * first.first.rows.shape[0])
    for part in parts:
        for norm in part.norms:
            nn.init.ones_(norm.weight)  # type: ignore[arg-type]
            if getattr(norm, "bias", None) is not None:
                nn.init.zeros_(norm.bias)  # type: ignore[arg-type]
    for block, part in enumerate(parts):
        if block in used or not per_token:
            _look_alike(part, values if block == 0 else None, silent=0 < block < len(parts) - (not per_token))
        if block in used:
            part.second.rows.zero_()
            _zero(part.second.bias)
    size = float(read_at(model, [Point(first.name, (), transposed=False)], input_ids=sample)[0].std())
    gain = 0.5 * size * sample.shape[1] ** 0.5
    first.out.rows[code, torch.arange(len(code))] = gain
    points = [Point(parts[block].first.name, (), transposed=False) for block in used]
    read = [each.reshape(*sample.shape, -1) for each in read_at(model, points, input_ids=sample)]
    if any(_apart(each, read[0]) for each in read) or not _coded(
        model, parts[0], sample, read[0], code, gain, values
    ):
        raise NotApplicable(
            "the blocks do not read what was planted once their attention looks at all tokens alike, so that "
            "tokens cannot be followed through them: this attack crafts GPT-2's, OPT's and BERT's kin."
        )
    lengths = read[0].norm(dim=-1)
    bounds = (float(lengths.min()) * (1 - _ALIKE), float(lengths.max()) * (1 + _ALIKE))
    direction = torch.randn(width, generator=generator)
    for number, (block, features) in enumerate(zip(used, read, strict=True)):
        measured = code[number * MEASURED : (number + 1) * MEASURED]
        _thresholds(parts[block], features.flatten(0, 1), measured, direction, size, generator)
    return Planted(used, code, gain, values, _begin(model, first, known), bounds)


def _sample(known: Knowledge, model: nn.Module, generator: torch.Generator, tokens: int) -> Tensor:
    """(n, length) texts that the thresholds are set by: public ones where the server has them."""
    length, device = known.input.shape[0], next(model.parameters()).device
    if known.auxiliary is not None:
        texts = known.auxiliary.inputs[(known.auxiliary.inputs != PADDING).all(dim=1)]
        if len(texts) * length >= tokens // SAMPLED:
            return texts[: 1 + tokens // length].to(device)
    vocabulary = int(known.input.vocabulary or 0)
    return torch.randint(vocabulary, (1 + tokens // length, length), generator=generator).to(device)


def _apart(one: Tensor, other: Tensor) -> bool:
    return float((one - other).norm()) > _ALIKE * float(other.norm())


def _coded(
    model: nn.Module,
    part: Anatomy,
    sample: Tensor,
    read: Tensor,
    code: Tensor,
    gain: float,
    values: Tensor,
) -> bool:
    """Whether features hold the mean of what the tokens up to each one, or all of the text, carried."""
    points = [Point(name, (), transposed=False) for name in (part.name, part.mixing[-1].name)]
    base, fed = (
        each.reshape(*sample.shape, -1).double() for each in read_at(model, points, input_ids=sample)
    )
    off = torch.ones(base.shape[-1], dtype=torch.bool, device=base.device)
    off[code] = False
    width = base.shape[-1]
    fitted, _ = fitted_to(base.reshape(-1, width), read.double().reshape(-1, width), off)
    found = (fitted - base.reshape(-1, width))[:, code].reshape(*sample.shape, -1) / gain
    carried = fed @ values.to(fed).T  # (n, length, c)
    count = torch.arange(1, sample.shape[1] + 1, device=fed.device, dtype=fed.dtype)
    so_far = carried.cumsum(dim=1) / count[:, None]
    return not _apart(found, so_far) or not _apart(found, so_far[:, -1:].expand_as(found))


def _begin(model: nn.Module, part: Anatomy, known: Knowledge) -> int:
    """What a model calls the first place of a text, by trying."""
    point = [Point(part.name, (), transposed=False)]
    one = torch.full((1, 1), int(known.input.vocabulary or 1) - 1, device=next(model.parameters()).device)
    (usual,) = read_at(model, point, input_ids=one)
    for number in range(_PLACES):
        (there,) = read_at(model, point, input_ids=one, position_ids=torch.full_like(one, number))
        if torch.equal(there, usual):
            return number
    raise NotApplicable(
        "the model does not say where a text begins: no number of a place gives its first one."
    )


def _zero(bias: Tensor | None) -> None:
    if bias is not None:
        bias.zero_()


def _look_alike(part: Anatomy, values: Tensor | None, *, silent: bool) -> None:
    """Attention that looks at every token alike; values: what it carries; silent: it writes nothing."""
    for number, layer in enumerate(part.mixing):
        width = layer.rows.shape[0] // (3 if len(part.mixing) == 1 else 1)
        mixes = layer.rows[: 2 * width] if len(part.mixing) == 1 else layer.rows
        bias = layer.bias if layer.bias is None or len(part.mixing) == 3 else layer.bias[: 2 * width]
        if len(part.mixing) == 1 or number < 2:
            mixes.zero_()
            _zero(bias)
        if values is not None and (len(part.mixing) == 1 or number == 2):
            _zero(layer.bias)
            layer.rows[-width:] = 0
            layer.rows[len(layer.rows) - width :][: len(values)] = values.to(layer.rows)
    if values is not None or silent:
        part.out.rows.zero_()
        _zero(part.out.bias)


def _thresholds(
    part: Anatomy,
    features: Tensor,
    measured: Tensor,
    direction: Tensor,
    size: float,
    generator: torch.Generator,
) -> None:
    """Rows of one measure, in steps of as many sampled tokens each, and a way back that is alike for all."""
    rows = part.first.rows
    row = torch.zeros(rows.shape[1], dtype=rows.dtype, device=rows.device)
    row[measured] = torch.randn(len(measured), generator=generator).to(row)
    readings = (features @ row).double()
    steps = readings.quantile(torch.arange(len(rows), device=row.device).double() / len(rows))
    spread = float(readings.std())
    steps[0] = steps[0] - 10 * spread  # everything lies above the first
    slope = STEEPNESS / float(steps.diff().median())
    rows.copy_((slope * row).expand_as(rows))
    assert part.first.bias is not None
    part.first.bias.copy_(-slope * steps)
    quiet = QUIET * size / (len(rows) * slope * spread)
    part.second.rows.copy_((quiet * direction.to(row))[:, None].expand_as(part.second.rows))


def fitted_to(base: Tensor, x: Tensor, off: Tensor) -> tuple[Tensor, Tensor]:
    """What was read as a x + b that fits the known components best, and how far it lies from them."""
    known, seen = base[:, off], x[:, off]
    mean, middle = known.mean(dim=1, keepdim=True), seen.mean(dim=1, keepdim=True)
    a = ((known - mean) * (seen - middle)).sum(dim=1) / (seen - middle).square().sum(dim=1)
    fitted = a[:, None] * (x - middle) + mean
    left = (fitted[:, off] - known).norm(dim=1) / (known - mean).norm(dim=1)
    return fitted, left
