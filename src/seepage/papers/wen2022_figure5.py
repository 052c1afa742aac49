"""Wen et al. 2022, Figure 5(a): queries until one example is alone, by batch size (Sections 3.4 and 4.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from seepage.attacks.binary_fishing import BinaryFishing, binary_fishing, one_shot_binary_fishing
from seepage.errors import DataError, ModelError
from seepage.metrics import cosine
from seepage.papers.fishing import (
    FEATURES_ONCE,
    SETTING,
    FeatureWorld,
    draw,
    gradient_cosine,
    known_to_server,
    own_gradient,
    photo_world,
    play_fishing,
    trained_world,
)
from seepage.papers.rows import RowPlan, compute_rows, fingerprint
from seepage.papers.table import Column, Row, Table

NAME = "wen2022/figure5"

BATCH_SIZES = (2, 4, 8, 16, 32, 64, 128, 256)
WHOLE_NETWORK_SIZES = (8, 64, 256)
WHOLE_NETWORK_USERS = 20
PHOTO_SIZES = (8, 16, 32)
PHOTO_USERS = 2
FIRST_USER = 1000
"""Users of the whole network's rows are drawn from here on, where none was drawn before."""
PUBLISHED = {256: 8.0}
"""The text names this one; the others are only drawn."""
SAME = 0.999
"""Cosine from which on a fished gradient or feature counts as that of one example."""

COLUMNS = (
    Column("queries", "queries until the server stops", 1.0, unit="count"),
    Column("log2 n", "the paper's O(log n)"),
    Column("bound", "most queries, as stated before the first", unit="count"),
    Column(
        "isolated",
        f"share of users of whom one example comes out, cosine to its own at least {SAME}; 'every example': "
        "share of the examples",
        unit="share",
    ),
    Column("false", "the same share, of what the server claims to be one example and is not", unit="share"),
    Column(
        "cosine",
        "of what was fished with the example's own: feature, or gradient of the whole network; 'every "
        "example': the lowest",
        unit="similarity",
    ),
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
PHOTO_NOTE = (
    "Photos: ImageNet photographs at 128x128 under the published EfficientNet-lite0 (1280 features, 1000 "
    "classes), batch norm in eval mode, real updates of all 4.7 million parameters. There is one photograph "
    "a class, so that batches are mixed, which the paper cannot fish (Remark 3.3); differences of cuts can, "
    "for one query more (the lower end). Pictures were not inverted from these gradients; that was not tried."
)


def run(
    *,
    seeds: int,
    out: Path,
    quiet: bool = False,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    whole_network_sizes: Sequence[int] = WHOLE_NETWORK_SIZES,
    photo_sizes: Sequence[int] = PHOTO_SIZES,
    world: FeatureWorld | None = None,
) -> Table:
    """Seeds are users; on one core a minute for the features' rows and about ten for the whole networks'."""
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
    photos, missing = photo_rows(photo_sizes, seeds=min(seeds, PHOTO_USERS), out=out, quiet=quiet)
    return Table(
        name=NAME,
        title="Wen et al. 2022, Figure 5(a): queries of the one-shot binary attack, batches of one class",
        columns=COLUMNS,
        rows=rows + photos,
        notes=(
            f"{world.dataset.source}, {len(world.dataset)} pictures.",
            *NOTES,
            *((PHOTO_NOTE,) if photos else ()),
        ),
        missing=missing,
    )


def photo_rows(
    sizes: Sequence[int], *, seeds: int, out: Path, quiet: bool
) -> tuple[tuple[Row, ...], tuple[str, ...]]:
    """The photographs' rows, or why there are none."""
    if not sizes:
        return (), ()
    try:
        world = photo_world()
    except (DataError, ModelError) as error:
        return (), (f"Photos, EfficientNet-lite0: {error}",)
    plans = [plan_photo_row(world, size, everyone=everyone) for everyone in (False, True) for size in sizes]
    return compute_rows(plans, seeds=seeds, out=out, quiet=quiet), ()


def plan_row(world: FeatureWorld, size: int, *, whole_network: bool) -> RowPlan:
    """One batch size."""
    return RowPlan(
        group="whole network" if whole_network else "classification layer on the features",
        label=f"batch {size}",
        measure=partial(measure, world, size=size, whole_network=whole_network),
        published={"queries": PUBLISHED[size]} if size in PUBLISHED else {},
        fingerprint=fingerprint(
            world.dataset, size=size, first=FIRST_USER if whole_network else 0, whole_network=whole_network
        ),
    )


def plan_photo_row(world: FeatureWorld, size: int, *, everyone: bool) -> RowPlan:
    """One batch size of mixed photographs: one example, or every example."""
    return RowPlan(
        group="photos, EfficientNet-lite0, whole network, mixed classes",
        label=f"{'every example, ' if everyone else ''}batch {size}",
        measure=partial(measure_photos, world, size=size, everyone=everyone),
        published={},
        fingerprint=fingerprint(world.dataset, size=size, everyone=everyone),
    )


def measure(world: FeatureWorld, seed: int, *, size: int, whole_network: bool) -> dict[str, float]:
    """One user with pictures of one class, asked until one of them is alone."""
    seed = seed + FIRST_USER if whole_network else seed
    target = seed % world.dataset.spec.num_classes
    mine = draw(world.members(target), size, torch.Generator().manual_seed(seed))
    attack = one_shot_binary_fishing(target_class=target)
    return search(world, mine, attack, seed=seed, whole_network=whole_network)


def measure_photos(world: FeatureWorld, seed: int, *, size: int, everyone: bool) -> dict[str, float]:
    """One user with pictures of any class."""
    mine = draw(torch.arange(len(world.dataset)), size, torch.Generator().manual_seed(seed))
    attack = binary_fishing() if everyone else one_shot_binary_fishing()
    return search(world, mine, attack, seed=seed, whole_network=True)


def search(
    world: FeatureWorld, mine: Tensor, attack: BinaryFishing, *, seed: int, whole_network: bool
) -> dict[str, float]:
    """Play the attack against one user and compare what it fished with the user's own examples."""
    batch = world.dataset.batch(mine) if whole_network else world.users([mine])[0]
    model = world.model if whole_network else world.layer
    known = known_to_server(world.dataset.spec if whole_network else world.spec, seed=seed)
    played = play_fishing(attack, model, [batch], known)
    catch = attack.fish(played.exchanges, known)
    own = world.features[mine].double()  # (n, m)
    similar: list[float] = []
    found: set[int] = set()
    false = 0
    for fished in catch.fished:
        nearest = int((fished.feature - own).norm(dim=1).argmin())
        if whole_network:
            truth = own_gradient(fished, batch.inputs[nearest])
            similar.append(gradient_cosine(dict(fished.tensors), truth))
        else:
            similar.append(float(cosine(fished.feature.unsqueeze(0), own[nearest : nearest + 1])))
        if fished.isolated and similar[-1] >= SAME:
            found.add(nearest)
        false += int(fished.isolated and similar[-1] < SAME)
    wanted = len(mine) if attack.all_of_them else 1
    return {
        "queries": float(catch.queries),
        "log2 n": math.log2(len(mine)),
        "bound": float(attack.query_bound(len(mine))),
        "isolated": len(found) / wanted,
        "false": false / wanted,
        "cosine": min(similar, default=0.0),
    }
