"""Ten thousand cells hold what they have in common once."""

from __future__ import annotations

import tracemalloc

from seepage.record import AttackRef
from seepage.record.cell import Cell, Example


def test_two_cells_read_from_disk_share_the_texts_that_they_have_in_common() -> None:
    digest = "ab" * 32  # longer than the strings that pydantic shares by itself
    cell = Cell(
        attack=AttackRef(name="analytic_extraction"),
        seed=0,
        status="done",
        knowledge=("The model that was sent, the loss (cross_entropy) and the shape of one example (64,).",),
        notes=("Read from layer '0', which sees the model's input, and from no other layer that it has.",),
        run_key=digest[::-1],
        made_by={"the attack's code": digest},
    )
    one, other = (Cell.model_validate_json(cell.model_dump_json()) for _ in range(2))
    assert one == other == cell
    assert one.knowledge[0] is other.knowledge[0] and one.notes[0] is other.notes[0]
    assert one.run_key is other.run_key
    assert one.made_by["the attack's code"] is other.made_by["the attack's code"]


def test_an_example_takes_a_kilobyte() -> None:
    """As a model, with a dict and a set of its own, it took two: 83 MB for 40,000 in each of two cells."""
    scores = dict.fromkeys(("exact", "mse", "psnr", "ssim"), 0.0)
    count = 2_000
    tracemalloc.start()
    try:
        cell = Cell(
            attack=AttackRef(name="analytic_extraction"),
            seed=0,
            status="done",
            examples=tuple(
                Example(
                    index=i,
                    client=i,
                    label=0,
                    recovered=True,
                    scores={**scores, "psnr": i / 7},
                    baseline=scores,
                )
                for i in range(count)
            ),
        )
        made, _ = tracemalloc.get_traced_memory()
        written = cell.model_dump_json()
        before, _ = tracemalloc.get_traced_memory()
        read = Cell.model_validate_json(written)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read == cell and max(made, after - before) < 1024 * count
