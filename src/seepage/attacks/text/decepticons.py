"""Decepticons (Fowl et al. 2022): a dishonest server's weights that let a transformer show its texts."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn

from seepage.attacks.base import Attack, pool
from seepage.attacks.text.bins import Bins, read_tokens
from seepage.attacks.text.chaining import Carried, chained, gathered
from seepage.attacks.text.planting import Planted, plant
from seepage.attacks.text.proving import settled
from seepage.core.errors import NotApplicable
from seepage.core.types import (
    PADDING,
    Crafted,
    Exchange,
    Grant,
    Knowledge,
    Modality,
    Reconstruction,
    UpdateKind,
)
from seepage.models.anatomy import anatomy_of
from seepage.models.blocks import is_causal
from seepage.models.hugging_face import is_adapted


class Decepticons(Attack):
    """Sends the planted model in the first round and reads what comes back."""

    requires = frozenset({Grant.CRAFT_WEIGHTS})

    def check(self, model: nn.Module, known: Knowledge) -> None:
        """A transformer whose blocks are trained, and clients that send one step's gradient."""
        if known.input.modality is not Modality.TEXT or known.input.vocabulary is None:
            raise NotApplicable("this attack reads texts: 'trap_weights' and 'imprint' craft for others.")
        first = anatomy_of(model, 0).first.module
        if is_adapted(model) or not first.weight.requires_grad:
            raise NotApplicable(
                "clients do not train the feed-forward layers, so that they send no gradient of them: "
                "'exact_text' reads adapters."
            )
        if known.local is not None and known.local.algorithm != "fedsgd":
            raise NotApplicable(
                "clients send weights, and the gradient of a planted layer is smaller than their last digit: "
                "this attack needs clients that send gradients (FedSGD)."
            )

    def craft(self, model: nn.Module, history: Sequence[Exchange], known: Knowledge) -> Crafted | None:
        if history:
            return None
        self.check(model, known)
        crafted = copy.deepcopy(model)
        planted = plant(crafted, known, torch.Generator().manual_seed(known.seed))
        return Crafted(crafted, planted)

    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        crafted = [exchange for exchange in exchanges if isinstance(exchange.secret, Planted)]
        if len(crafted) < len(exchanges) or not crafted:
            raise NotApplicable("the planted model was never sent: let the server craft the first round.")
        return pool([_read(exchange, known) for exchange in crafted])


def _read(exchange: Exchange, known: Knowledge) -> Reconstruction:
    """Tokens, texts, and the proof where no place is left open."""
    model, planted = exchange.broadcast.model, exchange.secret
    if exchange.update.kind is not UpdateKind.GRADIENT:
        raise NotApplicable(
            "the update is a difference of weights: this attack needs clients that send gradients."
        )
    length, vocabulary = known.input.shape[0], int(known.input.vocabulary or 0)
    tokens = read_tokens(Bins(model, exchange.update.tensors, planted), length, vocabulary)
    carried = Carried(model, planted, vocabulary)
    ids = (chained if is_causal(model) else gathered)(tokens, carried, length)
    there = ids != PADDING
    # a text without holes: no token behind an empty place
    whole = ~(there[:, 1:] & ~there[:, :-1]).any(dim=1)
    bins = len(planted.blocks) * anatomy_of(model, 0).first.rows.shape[0]
    notes = [
        f"{len(tokens)} tokens stood alone in {bins} bins of {len(planted.blocks)} crafted feed-forward "
        f"layers; their codes make {len(ids)} texts, {int(whole.sum())} of them without a hole."
    ]
    if len(ids) and bool(whole.all()):
        return settled(exchange, known, ids, notes)
    claimed = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    return Reconstruction(
        values=ids, claimed=claimed, complete=False if len(ids) else None, notes=tuple(notes)
    )


def decepticons() -> Decepticons:
    """Dishonest server, no architecture change: crafted blocks let feed-forward layers show single tokens,
    each with its place and its text, beyond the width (Decepticons, Fowl et al. 2022)."""
    return Decepticons()
