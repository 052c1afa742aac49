"""Wen et al. 2022, Figure 5(a): queries until one example is alone, by batch size (Sections 3.4 and 4.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from seepage.attacks.binary_fishing import one_shot_binary_fishing
from seepage.metrics import cosine
from seepage.papers.fishing import (
    FEATURES_ONCE,
    SETTING,
    FeatureWorld,
    draw,
    gradient_cosine,
    known_to_server,
    own_gradient,
    play_fishing,
    trained_world,
)
from seepage.papers.rows import RowPlan, compute_rows, fingerprint
from seepage.papers.table import Column, Table

NAME = "wen2022/figure5"

BATCH_SIZES = (2, 4, 8, 16, 32, 64, 128, 256)
WHOLE_NETWORK_SIZES = (8, 64, 256)
WHOLE_NETWORK_USERS = 3
PUBLISHED = {256: 8.0}
"""The text names this one; the others are only drawn."""
SAME = 0.999
"""Cosine from which on a fished gradient or feature counts as that of one example."""

COLUMNS = (
    Column("queries", "queries until the server stops", 1.0),
    Column("log2 n", "the paper's O(log n)"),
    Column("isolated", f"share of users of whom one example comes out, cosine to its own at least {SAME}"),
    Column("false", "share of users of whom the server claims one example and does not have it"),
    Column("cosine", "of what was fished with the example's own: feature, or gradient of the whole network"),
)

NOTES = (
    SETTING,
    FEATURES_ONCE,
    "As in the paper a user holds one class only; the class changes with the user (10 classes, so that 50 "
    "users share them). Classes have 1000 test pictures.",
    "Unlike the paper the cut is along a dense random direction instead of one feature (a picture whose "
    "feature is exactly 0 has no gradient), with beta = 1e6, and of the two sides of a cut the smaller is "
    "cut on, which bounds the number of queries in the worst case too. The first query asks for the whole "
    "class and is counted.",
    "Figure 5(b), pictures by batch size, is in wen2022/table2.",
)


def run(
    *,
    seeds: int,
    out: Path,
    quiet: bool = False,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    whole_network_sizes: Sequence[int] = WHOLE_NETWORK_SIZES,
    world: FeatureWorld | None = None,
) -> Table:
    """Seeds are users; a minute on one core for the features' rows, two for the whole network's."""
    world = trained_world() if world is None else world
    rows = compute_rows(
        [plan_row(world, size, whole_network=False) for size in batch_sizes],
        seeds=seeds,
        out=out,
        quiet=quiet,
    )
    rows += compute_rows(
        [plan_row(world, size, whole_network=True) for size in whole_network_sizes],
        seeds=min(seeds, WHOLE_NETWORK_USERS),
        out=out,
        quiet=quiet,
    )
    return Table(
        name=NAME,
        title="Wen et al. 2022, Figure 5(a): queries of the one-shot binary attack, batches of one class",
        columns=COLUMNS,
        rows=rows,
        notes=(f"{world.dataset.source}, {len(world.dataset)} pictures.", *NOTES),
    )


def plan_row(world: FeatureWorld, size: int, *, whole_network: bool) -> RowPlan:
    """One batch size."""
    return RowPlan(
        group="whole network" if whole_network else "classification layer on the features",
        label=f"batch {size}",
        measure=partial(measure, world, size=size, whole_network=whole_network),
        published={"queries": PUBLISHED[size]} if size in PUBLISHED else {},
        fingerprint=fingerprint(world.dataset, size=size, whole_network=whole_network),
    )


def measure(world: FeatureWorld, seed: int, *, size: int, whole_network: bool) -> dict[str, float]:
    """One user, asked until one of its examples is alone."""
    target = seed % world.dataset.spec.num_classes
    mine = draw(world.members(target), size, torch.Generator().manual_seed(seed))
    batch = world.dataset.batch(mine) if whole_network else world.users([mine])[0]
    model = world.model if whole_network else world.layer
    known = known_to_server(world.dataset.spec if whole_network else world.spec, seed=seed)
    attack = one_shot_binary_fishing(target_class=target)
    played = play_fishing(attack, model, [batch], known)
    catch = attack.fish(played.exchanges, known)
    similar = 0.0
    for fished in catch.fished:
        own = world.features[mine].double()  # (n, m)
        likeness = cosine(fished.feature.expand_as(own), own)
        distance = (fished.feature - own).norm(dim=1)
        nearest = int(distance.argmin())
        similar = float(likeness[nearest])
        if whole_network:
            truth = own_gradient(fished, batch.inputs[nearest])
            similar = gradient_cosine(dict(fished.tensors), truth)
    claimed = any(fished.isolated for fished in catch.fished)
    return {
        "queries": float(catch.queries),
        "log2 n": math.log2(size),
        "isolated": float(claimed and similar >= SAME),
        "false": float(claimed and similar < SAME),
        "cosine": similar,
    }
