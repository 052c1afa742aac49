"""Boenisch et al. 2021, Table 3: IMDB reviews, passive and with trap weights (Sections 8.2 and 8.3)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn

from seepage.papers.extraction import WHICH_PRECISION, Source, passive_extraction, scores_of
from seepage.papers.kept_batch import BATCHES, kept_recalls, with_kept_batches
from seepage.papers.rows import RowPlan, fingerprint
from seepage.papers.table import Table
from seepage.papers.trapping import answer, assemble, draw_batch, read_traps, set_traps
from seepage.types import InputSpec
from seepage.workloads.data import Dataset
from seepage.workloads.models.loading import build_model

NAME = "boenisch2021/table3"

SOURCES = (Source("IMDB", "imdb"),)

BATCH_SIZES = (20, 50, 100, 200)
SCALE = 0.99

# (A, P, R) in the order of BATCH_SIZES
PUBLISHED = {
    "passive": ((0.842, 0.072, 0.900), (0.885, 0.050, 0.552), (0.909, 0.036, 0.254), (0.927, 0.030, 0.128)),
    "traps": ((0.519, 0.610, 1.000), (0.776, 0.376, 0.962), (0.910, 0.192, 0.654), (0.978, 0.070, 0.255)),
}

NOTES: tuple[str, ...] = (
    WHICH_PRECISION,
    "The model of Table 8: 250 tokens with 250 values each, one dense layer of 1000 neurons, one logit. The "
    f"embedding is drawn from U(0, 1) for both attacks, as Section 8 describes it; traps have s = {SCALE}.",
    "The paper names no initialiser for the passive attack: Xavier uniform, TensorFlow's default, is taken. "
    "Wide Gaussians (.5) saturate the logit: examples that are classified right then have no gradient.",
    "Words are ranked over the reviews at hand and short reviews are padded in front, which makes 29% of all "
    "tokens the same one here; the paper does not describe its tokens. It hardly matters: with the first 250 "
    "words, padded behind, and words ranked over 25,000 reviews, kept batches have R = .999, .923, .646 and "
    ".242 with traps; as it is done here .999, .924, .647, .226 (means of 100 batches).",
    "Each run draws its own reviews. If the paper kept one batch over its 10 initialisations, as it seems to "
    "have done with pictures, R 5 % and R 95 % show how far that batch's luck reaches. Which reviews they "
    "were cannot be told: their order depends on the loader.",
    "An example counts when all of its 250 tokens are right.",
)


def run(
    *,
    seeds: int,
    out: Path,
    quiet: bool = False,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    scale: float = SCALE,
    dim: int = 250,
    width: int = 1000,
) -> Table:
    """Both attacks for every batch size."""
    table = assemble(
        name=NAME,
        title=f"Boenisch et al. 2021, Table 3: extraction of film reviews, N = {width}",
        sources=SOURCES,
        plan=partial(plan_rows, batch_sizes=batch_sizes, scale=scale, dim=dim, width=width),
        notes=NOTES,
        seeds=seeds,
        out=out,
        quiet=quiet,
        what="reviews",
    )
    return with_kept_batches(table)


def plan_rows(
    title: str, dataset: Dataset, *, batch_sizes: Sequence[int], scale: float, dim: int, width: int
) -> list[RowPlan]:
    """Passive rows, then rows with traps."""
    print_ = fingerprint(dataset, scale=scale, dim=dim, width=width, kept_batches=BATCHES)
    return [
        RowPlan(
            group=f"{title}, {attack}",
            label=f"B = {b}",
            measure=partial(
                measure, dataset, scale if attack == "traps" else None, batch_size=b, dim=dim, width=width
            ),
            published=dict(zip("APR", dict(zip(BATCH_SIZES, values, strict=True)).get(b, ()), strict=False)),
            fingerprint=print_,
        )
        for attack, values in PUBLISHED.items()
        for b in batch_sizes
    ]


def text_model(spec: InputSpec, *, seed: int, dim: int, width: int) -> nn.Module:
    """Table 8's model, Xavier uniform as in TensorFlow by default, with embeddings from U(0, 1)."""
    model = build_model("imdb_net", spec, initialiser="xavier_uniform", seed=seed, dim=dim, width=width)
    generator = torch.Generator().manual_seed(seed)
    embedding = model.get_parameter("embedding.weight")
    with torch.no_grad():
        embedding.copy_(torch.rand(embedding.shape, generator=generator))
    return model


def measure(
    dataset: Dataset, scale: float | None, seed: int, *, batch_size: int, dim: int, width: int
) -> dict[str, float]:
    """One run; scale None: passive. R of kept batches beside its scores."""
    batch = draw_batch(dataset, batch_size, seed)
    model = text_model(dataset.spec, seed=seed, dim=dim, width=width)
    if scale is None:
        scores = passive_extraction(model, batch, dataset.spec)
    else:
        crafted = set_traps(model, dataset.spec, scale=scale, seed=seed)
        scores = scores_of(read_traps(answer(crafted, batch), dataset.spec), batch, dataset.spec)
        model = crafted.model
    return {**scores, **kept_recalls(model, dataset, batch_size=batch_size)}
