"""A small vision transformer (Dosovitskiy et al. 2021) with the attention written out.

torch's fused attention has no double backward, which every gradient-inversion attack needs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from seepage.core.errors import ModelError
from seepage.core.types import InputSpec
from seepage.models.shapes import image_shape, require_positive


class Attention(nn.Module):
    """softmax(Q K^T / sqrt(d)) V over several heads."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.softmax = nn.Softmax(dim=-1)
        self.projection = nn.Linear(dim, dim)

    def _split(self, x: Tensor) -> Tensor:
        n, tokens, dim = x.shape
        return x.reshape(n, tokens, self.heads, dim // self.heads).transpose(1, 2)  # (n, heads, tokens, d)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self._split(self.query(x)), self._split(self.key(x)), self._split(self.value(x))
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])  # (n, heads, tokens, tokens)
        mixed = self.softmax(scores) @ value  # (n, heads, tokens, d)
        return self.projection(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention, then two dense layers, each behind a layer norm and beside a residual.

    Without `norm` the attention sees the embedding itself, and without `residual` the gradient reaches
    the embedding through the attention only: the two conditions of APRIL's closed form (Lu et al. 2022).
    The norm between attention and dense layers stays, for it does not stand in the way.
    """

    def __init__(
        self, dim: int, heads: int, hidden: int, *, norm: bool = True, residual: bool = True
    ) -> None:
        super().__init__()
        self.residual = residual
        self.norm1 = nn.LayerNorm(dim, eps=1e-6) if norm else nn.Identity()
        self.attention = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.dense1 = nn.Linear(dim, hidden)
        self.gelu = nn.GELU()
        self.dense2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        attended = self.attention(self.norm1(x))
        x = x + attended if self.residual else attended
        dense = self.dense2(self.gelu(self.dense1(self.norm2(x))))
        return x + dense if self.residual else dense  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
    """Patches and a class token, learned positions, blocks, norm, linear on the class token."""

    def __init__(
        self,
        image: tuple[int, int, int],
        num_classes: int,
        *,
        patch_size: int,
        dim: int,
        depth: int,
        heads: int,
        mlp_ratio: int,
        norm_first_block: bool,
        residual_first_block: bool,
    ) -> None:
        super().__init__()
        channels, height, width = image
        num_patches = (height // patch_size) * (width // patch_size)
        self.patch_embedding = nn.Conv2d(channels, dim, kernel_size=patch_size, stride=patch_size)
        self.class_token = nn.Parameter(torch.empty(1, 1, dim))
        self.position = nn.Parameter(torch.empty(1, 1 + num_patches, dim))
        first = Block(dim, heads, mlp_ratio * dim, norm=norm_first_block, residual=residual_first_block)
        self.blocks = nn.Sequential(first, *(Block(dim, heads, mlp_ratio * dim) for _ in range(depth - 1)))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, num_classes)
        nn.init.normal_(self.class_token, std=0.02)
        nn.init.normal_(self.position, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch_embedding(x).flatten(2).transpose(1, 2)  # (n, patches, dim)
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), patches], dim=1)
        tokens = self.blocks(tokens + self.position)  # (n, 1 + patches, dim)
        return self.head(self.norm(tokens)[:, 0])  # type: ignore[no-any-return]


def vit(
    spec: InputSpec,
    *,
    patch_size: int = 4,
    dim: int = 64,
    depth: int = 2,
    heads: int = 4,
    mlp_ratio: int = 4,
    norm_first_block: bool = True,
    residual_first_block: bool = True,
) -> VisionTransformer:
    """A ViT. `norm_first_block=False, residual_first_block=False` is the variant that APRIL inverts."""
    image = image_shape(spec, "vit")
    require_positive("vit", patch_size=patch_size, dim=dim, depth=depth, heads=heads, mlp_ratio=mlp_ratio)
    if image[1] % patch_size or image[2] % patch_size:
        raise ModelError(
            f"model 'vit': {image[1]}x{image[2]} pixels cannot be cut into patches of "
            f"{patch_size}x{patch_size}; choose a patch_size that divides both sides."
        )
    if dim % heads:
        raise ModelError(
            f"model 'vit': dim={dim} cannot be shared by {heads} heads; choose a multiple of heads."
        )
    return VisionTransformer(
        image,
        spec.num_classes,
        patch_size=patch_size,
        dim=dim,
        depth=depth,
        heads=heads,
        mlp_ratio=mlp_ratio,
        norm_first_block=norm_first_block,
        residual_first_block=residual_first_block,
    )
