"""How far label counts rest on what the server takes the clients' examples to look like.

N = n (mean_p - grad_b) needs the mean prediction on examples that the server never saw. The gradient tells
much of it, but not all: in a balanced batch it is silent about the mean feature, and the probes speak in its
place. An error e there moves counts by n e, so that what is sure for 10 examples is a guess for 200. The
server cannot know e, but it can ask again with probes that look altogether different: counts that the
gradient settles stay where they are, and counts that the probes settle move.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seepage.core.types import Exchange, InputSpec, Knowledge, Modality
from seepage.labels.evidence import FEWEST_PROBES, Probes, affordable_probes, gather_evidence, probed_by
from seepage.labels.gradient import mean_gradient
from seepage.labels.methods import bias_counts
from seepage.models.probes import dummy_inputs
from seepage.models.remembered import remembered

FLAT_PROBES = 64
"""Flat examples that are probed. Cost: one pass forward for all of them."""


def largest_movement(exchange: Exchange, known: Knowledge, num_examples: int, counts: Tensor) -> float:
    """Examples by which any class' count moves away from `counts` when the probes look different."""
    moved = 0.0
    model = exchange.broadcast.model

    def made() -> tuple[Knowledge, list[Probes]]:
        count = max(FEWEST_PROBES, min(FLAT_PROBES, affordable_probes(known, model)))
        return known, other_probes(known, model, count=count)

    _, others = remembered(model, ("other probes", probed_by(known)), made)
    for probes in others:
        evidence = gather_evidence(exchange, known, probes=probes)
        guess = bias_counts(evidence, mean_gradient(evidence, exchange, known, num_examples))
        moved = max(moved, float((guess.counts - counts).abs().max()))
    return moved


def other_probes(known: Knowledge, model: nn.Module, *, count: int = FLAT_PROBES) -> list[Probes]:
    """Populations unlike each other, between which the clients' lies: each half of the auxiliary examples, or
    where there are none examples that are flat, at the bottom and at the top of the range.

    >>> spec = InputSpec(modality=Modality.IMAGE, shape=(1, 2, 2), num_classes=2)
    >>> [tuple(probes.inputs.shape) for probes in other_probes(Knowledge(input=spec), nn.Linear(4, 2))]
    [(64, 1, 2, 2), (1, 1, 2, 2), (1, 1, 2, 2)]
    """
    public = known.auxiliary
    if public is not None and len(public) > 1:
        device = dummy_inputs(known.input, 1, like=model).device
        halves = (public.select(slice(start, None, 2)) for start in (0, 1))
        return [Probes(half.inputs.to(device), half.labels.to(device)) for half in halves]
    noise = dummy_inputs(known.input, count, like=model, seed=known.seed, model_units=known.normalised)
    if known.input.modality is Modality.TEXT:
        # one token all along: a random one for each text, and the padding
        one_token = noise[:, :1].expand_as(noise)
        return [Probes(one_token, None), Probes(torch.zeros_like(noise[:1]), None)]
    return [Probes(flat, None) for flat in _flat(known, noise)]


def _flat(known: Knowledge, like: Tensor) -> list[Tensor]:
    spec: InputSpec = known.input
    generator = torch.Generator().manual_seed(known.seed)
    if spec.value_range is None or known.normalised:
        levels, low, high = torch.randn(len(like), generator=generator), -1.0, 1.0
    else:
        low, high = spec.value_range
        levels = low + (high - low) * torch.rand(len(like), generator=generator)

    def at(values: Tensor) -> Tensor:
        raw = values.to(like).reshape(-1, *(1,) * (like.dim() - 1)).expand(-1, *like.shape[1:])
        return raw.clone() if known.normalised or spec.value_range is None else spec.to_model(raw)

    return [at(levels), at(torch.tensor([low])), at(torch.tensor([high]))]
