"""What an attack says where nobody has the truth: how many examples it vouches for, each counted once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from seepage.core.types import InputSpec, Reconstruction
from seepage.engine.views import raw_candidates
from seepage.metrics import exact_rule


@dataclass(frozen=True)
class Unscored:
    """What goes into a cell of the log. None of it was compared with anything."""

    claims: int
    """Candidates that the attack vouches for."""
    values: Tensor
    """(m, ...) one of each group of claims that are the same example, raw units for inputs."""

    @property
    def distinct(self) -> int:
        return len(self.values)


def unscored(result: Reconstruction, spec: InputSpec, *, tolerance: float) -> Unscored:
    """The claims, and how many different examples they are: by the rule that makes a copy exact.

    >>> from seepage.core.types import Modality
    >>> spec = InputSpec(modality=Modality.TABULAR, shape=(1,), num_classes=2)
    >>> twice = torch.tensor([[0.1], [0.1], [0.7], [0.4]])
    >>> found = Reconstruction(values=twice, claimed=torch.tensor([True, True, True, False]))
    >>> counted = unscored(found, spec, tolerance=1e-3)
    >>> counted.claims, counted.distinct
    (3, 2)
    """
    values = raw_candidates(result, spec, torch.float32)
    claimed = values[:0] if result.claimed is None else values[result.claimed.cpu().bool()]
    if len(claimed) < 2:
        return Unscored(len(claimed), claimed)
    rule = exact_rule(spec, claimed, space=result.space, tolerance=tolerance)
    same = rule.every(claimed, claimed).nonzero().numpy()
    graph = coo_array(([True] * len(same), (same[:, 0], same[:, 1])), shape=(len(claimed), len(claimed)))
    count, group = connected_components(graph, directed=False)
    first = [int((group == number).argmax()) for number in range(count)]
    return Unscored(len(claimed), claimed[first])
