"""An attack that looks at the truth: `check_attack` refuses it, and an audit gives it nothing to look at."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import torch

from seepage.attacks import Attack
from seepage.core.types import Batch, Exchange, Knowledge, Reconstruction


class Peeks(Attack):
    """Goes through the memory of its process for the clients' batches."""

    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        held = [thing.inputs for thing in gc.get_objects() if isinstance(thing, Batch)]
        private = [inputs for inputs in held if known.auxiliary is None or len(inputs) < len(known.auxiliary)]
        found = private[: len(exchanges)] or [torch.zeros(1, *known.input.shape)]
        values = torch.cat(found)[: len(exchanges)]
        return Reconstruction(values=values, source=torch.arange(len(values)))
