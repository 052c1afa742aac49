"""Which tokens stand in one sentence, from the gradients of the first block's queries and keys.

In each head dQ_i = sum_k c_ik K_k, dK_k = sum_i c_ik Q_i and sum_k c_ik = 0 (softmax), and c_ik is zero
between sentences. Queries Q, keys K and features X of the candidates are known, and the gradients of the two
weights are X^T C K and X^T C^T Q: linear in C, which is sparse, with one pattern for all heads. So C is the
solution with the smallest sum of lengths over pairs, each length taken over the heads. It is found by
splitting (ADMM, Boyd et al. 2011, Sec. 6): project onto the equations, shrink, and weigh pairs anew by what
they have (Candes et al. 2008).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks.text.places import Places
from seepage.models.blocks import Attention

STEPS, ROUNDS = 20, 9
"""Steps between two weighings, and weighings. Cost: time; MiniLM's links no longer move after the third."""
SHRINK = 0.3
"""Of the mean length of a pair: what a pair must exceed to stay, at the start. No plateau test yet."""
FAINT = 0.05
"""Of the strongest link of its two tokens: below it a pair is pressed towards zero. No plateau test yet."""
SMALLEST = 1e-6
"""Singular values of the features, over the largest, that are kept. Derived: float32 resolves 1e-7."""
ONES = 0.05
"""Weight of the bias beside the weights, as if a feature of that share of the features' length were read. No
plateau test yet."""


class Links:
    """The equations for C (heads, n, n) of n candidates, and their sparse solution."""

    def __init__(
        self, model: nn.Module, attention: Attention, tensors: Mapping[str, Tensor], found: Places
    ) -> None:
        count, heads = len(found), attention.heads
        constant = ONES * found.features.norm(dim=1).mean()
        ones = torch.ones(count, 1, dtype=torch.float64, device=found.features.device)
        read = torch.cat([found.features, constant * ones], dim=1)
        left, values, right = torch.linalg.svd(read, full_matrices=False)
        rank = int((values > SMALLEST * values[0]).sum())
        self.rank = rank
        self.free = count > rank
        space = left[:, :rank]
        inverse = space / values[:rank] @ right[:rank]  # (n, features + 1)

        def headed(matrix: Tensor) -> Tensor:
            return matrix.reshape(count, heads, -1).transpose(0, 1)  # (heads, n, width)

        def sent(layer: str) -> Tensor:
            bias = tensors[f"{layer}.bias"].detach().double()[:, None]
            gradient = torch.cat([tensors[f"{layer}.weight"].detach().double(), constant * bias], dim=1)
            return headed(inverse @ gradient.T)

        def made(layer: str) -> Tensor:
            linear: Any = model.get_submodule(layer)
            return headed(found.features @ linear.weight.detach().double().T + linear.bias.detach().double())

        queries, keys = made(attention.query), made(attention.key)
        keys = torch.cat([keys, ones.expand(heads, -1, -1)], dim=2)  # C 1 = 0
        by_query = torch.cat([sent(attention.query), 0 * ones.expand(heads, -1, -1)], dim=2)
        wanted = by_query @ torch.linalg.pinv(keys)
        other = (sent(attention.key) @ torch.linalg.pinv(queries)).transpose(1, 2)
        scale = wanted.flatten(1).norm(dim=1)[:, None, None].clamp_min(torch.finfo(torch.float64).tiny)
        self.by_query, self.by_key = (wanted / scale).float(), (other / scale).float()
        self.keys = torch.linalg.svd(keys, full_matrices=False)[0].float()
        self.queries = torch.linalg.svd(queries, full_matrices=False)[0].float()
        self.space = space.float()
        same = found.places[:, None] == found.places[None]
        self.apart = same & ~torch.eye(count, dtype=torch.bool, device=same.device)

    def _solved(self, links: Tensor) -> Tensor:
        """The nearest C that fulfils the equations; their projections commute, as Q and K are made of X."""
        some = self.space @ (self.space.T @ links) if self.free else links
        links = links + self.by_query - (some @ self.keys) @ self.keys.transpose(1, 2)
        some = (links @ self.space) @ self.space.T if self.free else links
        links = links + self.by_key - self.queries @ (self.queries.transpose(1, 2) @ some)
        if self.free:
            sums = links.mean(dim=2, keepdim=True)
            links = links - (sums - self.space @ (self.space.T @ sums))
        return links

    def strengths(self) -> Tensor:
        """(n, n) symmetric: how strongly each two are linked, over all heads; on the diagonal with itself.

        Two tokens at one place are in no sentence together.
        """
        kept = self._solved(torch.zeros_like(self.by_query))
        shrink = SHRINK * kept.norm(dim=0).mean()
        missing, weights = torch.zeros_like(kept), torch.ones_like(kept[0])
        both = weights
        for _ in range(ROUNDS):
            for _ in range(STEPS):
                links = self._solved(kept - missing)
                moved = links + missing
                length = moved.norm(dim=0).clamp_min(torch.finfo(moved.dtype).tiny)
                share = (1 - shrink * weights / length).clamp_min(0).masked_fill(self.apart, 0)
                kept = moved * share
                missing = moved - kept
            length = links.norm(dim=0)
            both = (length.square() + length.T.square()).sqrt()
            token = both.norm(dim=1)
            most = both.amax(dim=1)
            relative = both / (most[:, None] * most[None]).sqrt().clamp_min(torch.finfo(both.dtype).tiny)
            weights = 3 * FAINT / (relative + FAINT)
            if self.free:  # false candidates fade as a whole
                usual = token.topk(min(self.rank, len(token))).values.mean()
                faint = 3 * FAINT / (token / usual + FAINT)
                weights = weights * (faint[:, None] * faint[None]).sqrt().clamp_min(SHRINK)
        return both.masked_fill(self.apart, 0)
