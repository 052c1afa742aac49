"""Clients that train as people train: every attack runs or says why, and claims nothing that is false."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import seepage

ATTACKS = ["exact_extraction", {"name": "inverting_gradients", "steps": 5}]
CLIENTS: dict[str, dict[str, Any]] = {
    "mixed precision": {"mixed_precision": True},
    "accumulation": {"accumulation": 2, "local_batch_size": 2},
    "clipped": {"clip_norm": 0.5},
    "weight decay": {"weight_decay": 0.01},
    "linear schedule": {"schedule": "linear", "local_steps": 2},
    "cosine schedule": {"schedule": "cosine", "local_steps": 2},
    "momentum": {"momentum": 0.9, "local_steps": 2},
    "adam": {"optimizer": "adam", "lr": 1e-3},
    "adamw": {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.01},
    "adamw, several steps": {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.01, "local_steps": 3},
    "all of it": {
        "optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.01, "schedule": "cosine", "clip_norm": 1.0,
        "mixed_precision": True, "local_steps": 2,
    },
}  # fmt: skip
READ = ("accumulation", "clipped", "weight decay")
"""One step of SGD, in effect: read like plain SGD, all four examples."""


@pytest.mark.parametrize("client", CLIENTS)
def test_attacks_run_or_say_why_and_claim_nothing_false(tmp_path: Path, client: str) -> None:
    found = seepage.audit(
        model="mlp", data="digits", attacks=ATTACKS, seeds=[0], out=tmp_path, engine="here",
        protocol={"algorithm": "fedavg", "batch_size": 4, "lr": 0.1, **CLIENTS[client]},
        on_plan=lambda header: None, advice=False,
    )  # fmt: skip
    cells = {cell.attack.name: cell for cell in found.cells}
    for name in ("exact_extraction", "inverting_gradients"):
        cell = cells[name]
        assert cell.status in ("done", "not_applicable"), (cell.status, cell.reason)
        if cell.status == "done":
            assert (cell.claims or 0) == (cell.claims_right or 0)
        else:
            assert cell.reason.rstrip().endswith(".") and "Traceback" not in cell.reason
    assert cells["inverting_gradients"].status == "done"  # a search plays any of these trainings
    if client in READ:
        read = cells["exact_extraction"]
        assert sum(one.scores["exact"] for one in read.examples) == 4
        assert read.label_counts == read.true_label_counts


def test_clients_that_stop_early_are_scored_for_what_they_trained_on(tmp_path: Path) -> None:
    """Two steps of two of eight examples: four of them are in no update, and can be read from none."""
    found = seepage.audit(
        model="mlp", data="digits", attacks=ATTACKS, seeds=[0], out=tmp_path, engine="here",
        protocol={"algorithm": "fedavg", "batch_size": 8, "local_batch_size": 2, "local_steps": 2, "lr": 0.1},
        on_plan=lambda header: None, advice=False,
    )  # fmt: skip
    assert any("4 of the 8 examples" in said for said in found.header.doubts)
    for cell in found.cells:
        assert len(cell.examples) == 4 and sum(cell.true_label_counts or ()) == 4
        if cell.attack.name != "prior_only":
            assert cell.label_counts == cell.true_label_counts
        if cell.attack.name == "exact_extraction":
            assert cell.claims == cell.claims_right == 4
            assert [one.scores["exact"] for one in cell.examples] == [1.0] * 4
