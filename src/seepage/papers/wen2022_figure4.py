"""Wen et al. 2022, Figure 4: how many users the estimate of a feature's distribution takes (Section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seepage.papers import wen2022_table1 as table1
from seepage.papers.fishing import FeatureWorld, trained_world
from seepage.papers.rows import compute_rows
from seepage.papers.table import Table

NAME = "wen2022/figure4"

USERS = (10, 25, 50, 100, 150, 225)

COLUMNS = tuple(column for column in table1.COLUMNS if column.name != "KS")

NOTES = (
    "The paper draws this figure without numbers, for 50 to 225 users; its Table 1 has those of the largest "
    "number. 10 and 25 users are added. 'off' is Figure 4(a) as a number.",
)


def run(
    *,
    seeds: int,
    out: Path,
    quiet: bool = False,
    users: Sequence[int] = USERS,
    attacked_users: int = table1.ATTACKED_USERS,
    world: FeatureWorld | None = None,
) -> Table:
    """The KS row of Table 1 by number of users; some seconds a row on one core."""
    world = trained_world() if world is None else world
    published = dict(zip(table1.CAUGHT, table1.PUBLISHED["ks"], strict=True))
    plans = [
        table1.plan_row(
            world,
            f"{number} users",
            published if number == table1.ESTIMATE_USERS else {},
            choice="ks",
            estimate_users=number,
            attacked_users=attacked_users,
        )
        for number in users
    ]
    return Table(
        name=NAME,
        title=f"Wen et al. 2022, Figure 4: pictures caught of {table1.BATCH}, by users of the estimate",
        columns=COLUMNS,
        rows=compute_rows(plans, seeds=seeds, out=out, quiet=quiet),
        notes=(f"{world.dataset.source}, {len(world.dataset)} pictures.", *NOTES, *table1.NOTES[:5]),
    )
