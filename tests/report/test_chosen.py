"""What a page shows of a large run: the worst, the best and a sample, and never more than it has room for."""

from __future__ import annotations

import numpy as np

from seepage.report.chosen import FEWEST, LONGEST, PAIRS, SEEDS, room
from seepage.report.gallery import build_galleries
from seepage.report.html import render_html


def test_a_large_run_shows_most_least_and_some_drawn(new_log) -> None:
    psnr = [10.0 + i / 100 for i in range(300)]
    log = new_log().add_images("analytic", psnr).build()
    (gallery,), _ = build_galleries(log, [c for c in log.cells if c.attack.name == "analytic"])
    shown = [item.index for item in gallery.items]
    assert shown[:8] == list(range(299, 291, -1)) and shown[-8:] == list(range(7, -1, -1))
    assert len({*shown[8:16]}) == 8 and all(8 <= n <= 291 for n in shown[8:16])
    assert gallery.more == (
        "8 that leaked most, then 8 of the others, drawn at random, then 8 that leaked least; "
        "and 276 more in the log"
    )


def test_a_small_run_is_shown_whole(new_log) -> None:
    html = render_html(new_log().add_images("analytic", [20.0] * 5).build())
    assert "most leaked first" in html and "leaked least" not in html


def test_many_attacks_on_photos_stay_below_three_megabytes(new_log) -> None:
    photos = np.random.default_rng(0).random((4, 3, 160, 160)).astype(np.float32)
    builder = new_log(input_changes={"shape": (3, 160, 160)})
    for number in range(12):
        builder.add_images(f"attack_{number}", [11.0, 12.0, 13.0, 14.0], arrays=(photos, photos))
    log = builder.build()
    space = room(log)
    assert space.seeds == 1 and space.pairs == FEWEST and space.longest < LONGEST
    assert len(render_html(log).encode()) < 3 * 2**20


def test_few_attacks_on_small_pictures_have_all_the_room(new_log) -> None:
    space = room(new_log().add_images("analytic", [20.0] * 30).build())
    assert (space.seeds, space.pairs, space.longest) == (SEEDS, PAIRS, LONGEST)
