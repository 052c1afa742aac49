"""Words that clients of a masked language model hide before they train."""

from __future__ import annotations

import torch

from seepage.core.types import PADDING, Batch, Masking

AS_MASK, AS_ANY = 0.8, 0.5
"""Of the hidden words, and of those that are left then. Paper: Devlin et al. 2019, as Hugging Face has it."""


def hidden(batch: Batch, masking: Masking | None) -> Batch:
    """The batch with some words hidden, and these as the targets; as it is where it has targets already.

    Drawn from torch's own random state, as a client's dropout is. Of a draw that hides nothing there would be
    no loss, so another one is made.

    >>> from seepage.core.types import Masking
    >>> one = hidden(Batch(torch.tensor([[5, 6, 7]]), torch.tensor([0])), Masking(mask=1, vocabulary=9))
    >>> was = one.targets != PADDING
    >>> bool(was.any()), torch.where(was, one.targets, one.inputs).tolist()
    (True, [[5, 6, 7]])
    """
    if masking is None or batch.targets is not None:
        return batch
    ids = batch.inputs
    none = torch.tensor([PADDING, *masking.never], device=ids.device)
    allowed = ~torch.isin(ids, none)
    if not bool(allowed.any()):
        allowed = ids != PADDING
    chosen = torch.zeros_like(allowed)
    while not bool(chosen.any()):
        chosen = allowed & (torch.rand(ids.shape, device=ids.device) < masking.share)
    as_mask = chosen & (torch.rand(ids.shape, device=ids.device) < AS_MASK)
    as_any = chosen & ~as_mask & (torch.rand(ids.shape, device=ids.device) < AS_ANY)
    others = torch.randint(masking.vocabulary, ids.shape, device=ids.device)
    fed = torch.where(as_any, others, ids.masked_fill(as_mask, masking.mask))
    return Batch(fed, batch.labels, ids.masked_fill(~chosen, PADDING))
