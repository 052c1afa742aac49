"""Sentences of linked tokens, each proven by the second block's span.

Around every token, each place is given the token that is linked most to what is there already. In an encoder
a sentence's features at the second block depend on all of its tokens, so that one wrong token puts all of
them outside the span: what lies inside at every place is a sentence of the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.text.growing import Reader
from seepage.attacks.text.places import Places
from seepage.core.types import PADDING
from seepage.models.blocks import read_at

SENTENCES = 256
"""Read in one pass. Cost: memory."""
SWEEPS = 4
"""Times that all places are chosen anew. Cost: time; links of true tokens settle in two."""
ENDS = 2
"""Places tried as a sentence's last one besides the whole, by each kind of support: where it falls most.
Cost: time."""
REPAIRS = 2000
"""Sentences with one place changed that are tried where tokens are left over. Cost: time."""


def sentences(second: Reader, found: Places, links: Tensor, length: int) -> Tensor:
    """(m, length) token ids, padded: every sentence that could be formed and was proven."""
    proposals = _proposals(found, links, length)
    proven = proposals[inside(second, proposals)]
    for _ in range(SWEEPS):
        missing = _missing(found, proven)
        if not bool(missing.any()):
            break
        known = {tuple(row) for row in proven.tolist()}
        among = _unexplained_first(found, missing)
        again = _proposals(found.only(among), links[among][:, among], length)
        more = again[inside(second, again)]
        more = more[[tuple(row) not in known for row in more.tolist()]]
        if len(more) == 0:
            rest = [row for row in proposals.tolist() if tuple(row) not in known]
            changed = _changed(rest, found, missing)
            more = changed[inside(second, changed)] if len(changed) else changed
        if len(more) == 0:
            break
        proven = torch.cat([proven, more]).unique(dim=0)
    return proven


def inside(second: Reader, ids: Tensor) -> Tensor:
    """(m,) bool: the second block read the features of every token of (m, length)."""
    kept = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    for rows in torch.arange(len(ids), device=ids.device).split(SENTENCES):
        there = ids[rows] != PADDING
        read = read_at(
            second.model,
            second.points,
            input_ids=ids[rows].masked_fill(~there, 0),
            attention_mask=there.long(),
        )
        good = second.passed([features.flatten(0, 1)[:, None] for features in read]).reshape(there.shape)
        kept[rows] = (good | ~there).all(dim=1)
    return kept


def _proposals(found: Places, links: Tensor, length: int) -> Tensor:
    """(m, length): one sentence around each token, with a few ends each."""
    count, device = len(found), links.device
    own = links.amax(dim=1).clamp_min(torch.finfo(links.dtype).tiny)
    weights = (links / (own[:, None] * own[None]).sqrt()).fill_diagonal_(0)
    at = found.places[None] == torch.arange(length, device=device)[:, None]  # (length, n)
    # (anchor, n): votes for each candidate, first of the anchor alone, then of all chosen ones
    votes = weights.clone()
    chosen = torch.zeros(count, length, dtype=torch.long, device=device)
    support = torch.zeros(count, length, device=device)
    for _ in range(SWEEPS):
        for place in range(length):
            score = votes.masked_fill(~at[place], -1.0)
            here = found.places == place
            score[here] = -1.0
            score[here, here.nonzero().squeeze(1)] = float(length)  # the anchor keeps its own place
            support[:, place], chosen[:, place] = score.max(dim=1)
        votes = weights[chosen].clamp_max(1.0).sum(dim=1)  # (anchor, n)
    ids = torch.where(support >= 0, found.tokens[chosen], PADDING)
    earlier = _by_earlier(weights, chosen)
    rows = [
        row
        for row, *supports, place in zip(ids, support, earlier, found.places, strict=True)
        for row in _ended(row, supports, place)
    ]
    different: Tensor = torch.stack(rows).unique(dim=0)
    return different


def _by_earlier(weights: Tensor, chosen: Tensor) -> Tensor:
    """(anchor, length): the mean link of each place's token with those at the places before it.

    Behind the end of a short sentence stand tokens of a longer one, which are linked to each other. But the
    first of them is linked to no more than what both sentences share.
    """
    length = chosen.shape[1]
    before = torch.ones(length, length, device=weights.device).tril(-1)
    means = [(weights[row][:, row].clamp_max(1.0) * before).sum(1) for row in chosen]
    mean = torch.stack(means) / torch.arange(length, device=weights.device).clamp_min(1)
    mean[:, 0] = mean[:, min(1, length - 1)]
    return mean


def _ended(row: Tensor, supports: list[Tensor], place: Tensor) -> list[Tensor]:
    """The row up to its first hole, and cut where a support falls most."""
    holes = (row == PADDING).nonzero()
    whole = int(holes[0]) if len(holes) else len(row)
    ends = {whole}
    for support in supports if whole > 1 else []:
        before = support[:whole].clone()
        before[place.clamp_max(whole - 1)] = before.median()
        falls = before[1:] / before[:-1].clamp_min(1e-9)
        ends |= set((falls.argsort()[:ENDS] + 1).tolist())
    rows = []
    for end in ends:
        if end > int(place):
            cut = row.clone()
            cut[end:] = PADDING
            rows.append(cut)
    return rows


def _missing(found: Places, proven: Tensor) -> Tensor:
    """(n,) bool: candidates that are in no proven sentence."""
    if len(proven) == 0:
        return torch.ones_like(found.certain)
    used = (proven[:, found.places] == found.tokens).any(dim=0)
    return ~used


def _unexplained_first(found: Places, missing: Tensor) -> Tensor:
    """(n,) bool: at each place the candidates in no proven sentence, or all where there is none of those.

    A long sentence outvotes a short one that shares tokens with it, until it is proven and out of the way.
    """
    at_place = torch.zeros(int(found.places.max()) + 1, dtype=torch.bool, device=missing.device)
    at_place[found.places[missing]] = True
    among: Tensor = missing | ~at_place[found.places]
    return among


def _changed(rest: list[list[int]], found: Places, missing: Tensor) -> Tensor:
    """(m, length): unproven rows with another candidate at one place, those with unexplained tokens first."""
    by_place: dict[int, list[int]] = {}
    for token, place in zip(found.tokens.tolist(), found.places.tolist(), strict=True):
        by_place.setdefault(place, []).append(token)
    left = {
        (t, p) for t, p in zip(found.tokens[missing].tolist(), found.places[missing].tolist(), strict=True)
    }
    rest = sorted(rest, key=lambda row: -sum((t, p) in left for p, t in enumerate(row)))
    rows: set[tuple[int, ...]] = set()
    for row in rest:
        for place, token in enumerate(row):
            if token == PADDING:
                break
            rows.update(
                (*row[:place], other, *row[place + 1 :])
                for other in by_place.get(place, [])
                if other != token
            )
        if len(rows) > REPAIRS:
            break
    return found.tokens.new_tensor(sorted(rows)[:REPAIRS]).reshape(-1, len(rest[0]) if rest else 1)
