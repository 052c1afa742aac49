"""The end of every reading of whole texts: what the loss wanted of them, and the proof."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.proof import shares, unexplained
from seepage.attacks.text.ends import classes, last_tokens
from seepage.attacks.text.local_steps import mean_gradient, several_steps
from seepage.attacks.text.targets import token_targets
from seepage.core.types import PADDING, Batch, Exchange, Knowledge, Reconstruction
from seepage.protocol.losses import MASKED_TOKEN, NEXT_TOKEN, PER_TOKEN, TOKEN_CLASS

REFINEMENTS = 4
"""Rounds of reading what the loss wanted, after several steps: the last tokens settle in two. No plateau test
yet."""
_TIMES = 10.0
"""How much more than what is left a token's share of the update must be. Derived: `peeling.BEYOND`, ten root
mean squares."""


def settled(exchange: Exchange, known: Knowledge, ids: Tensor, notes: list[str]) -> Reconstruction:
    """Last tokens or classes, and then the update of these texts beside the one that was sent."""
    rounding = max(torch.finfo(t.dtype).eps for t in exchange.update.tensors.values())
    fed, left, said = _fitted(exchange, known, ids, None)
    notes += said
    if several_steps(exchange.update, known.local):
        for _ in range(REFINEMENTS):
            if left is None or left <= rounding**0.5:
                break
            other, less, _ = _fitted(exchange, known, ids, fed)
            if less is None or less >= left:
                break
            fed, left = other, less
    ids, labels, targets = fed.inputs, fed.labels, fed.targets
    if known.loss == MASKED_TOKEN:
        ids, said = _unmasked(ids, targets, known)
        notes += said
    proven = left is not None and left <= rounding**0.5
    claimed = torch.zeros(len(ids), dtype=torch.bool)
    if left is not None and proven:
        # A wrong token changes as much of the update as its share in it: more than is left, or nobody knows.
        tokens = (ids != PADDING).sum(dim=1).clamp_min(1).double().cpu()
        claimed = shares(exchange, known, fed) / tokens > _TIMES * left
        proven = bool(claimed.all())
    if proven:
        notes.append(f"The update of these texts differs from the one sent by {left:.1g} of it: rounding.")
    elif left is not None:
        notes.append(f"The update of these texts leaves {left:.2g} of the one sent unexplained.")
    return Reconstruction(
        values=ids,
        claimed=claimed.to(ids.device),
        complete=proven,
        label_counts=torch.bincount(labels.cpu(), minlength=known.input.num_classes)
        if proven and known.input.num_classes > 1 and known.loss not in PER_TOKEN
        else None,
        notes=tuple(notes),
    )


def _fitted(
    exchange: Exchange, known: Knowledge, ids: Tensor, guess: Batch | None
) -> tuple[Batch, float | None, list[str]]:
    """The texts with what the loss wants of them (last tokens, targets or classes, by the last layers), and
    what they leave of the update; guess: what they were taken for before."""
    found = mean_gradient(exchange, known, guess)
    labels, targets, notes = torch.zeros(len(ids), dtype=torch.long, device=ids.device), None, []
    if known.loss == NEXT_TOKEN:
        behind = None if found is None else last_tokens(found[0], ids, found[1])
        if behind is None:
            notes.append("The last token of each text, which nothing is predicted from, could not be read.")
        else:
            ids = ids.clone()
            ends = (ids != PADDING).sum(dim=1)
            fits = ends < ids.shape[1]
            ids[fits.nonzero().squeeze(1), ends[fits]] = behind[fits]
    elif known.loss in PER_TOKEN:
        targets = None if found is None else token_targets(found[0], ids, found[1])
        if targets is None:
            notes.append(f"What the loss ({known.loss}) wants of each token could not be read.")
    elif found is not None and (inferred := classes(found[0], ids, found[1])) is not None:
        labels = inferred
    fed = Batch(ids, labels, targets)
    unknown = known.loss in _TARGETED and targets is None
    return fed, None if unknown else unexplained(exchange, known, fed), notes


_TARGETED = (MASKED_TOKEN, TOKEN_CLASS)


def _unmasked(ids: Tensor, targets: Tensor | None, known: Knowledge) -> tuple[Tensor, list[str]]:
    """The texts before words were hidden in them."""
    if targets is None:
        return ids, ["Texts are shown as the model was fed them, with words hidden by the clients."]
    was = targets != PADDING
    return torch.where(was, targets, ids), [
        f"{int(was.sum())} hidden words were read from the head; texts without one leave no trace."
    ]
