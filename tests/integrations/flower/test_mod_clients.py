"""Clients as they are, each recorded by the mod in a real ClientApp that trains with torch's own optimisers.

The same client is played by our own loop: the recording has to lead to the same scores, claims and reasons.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR
from torch.utils.data import DataLoader, TensorDataset

import seepage
from seepage.engine.prepare import prepare
from seepage.engine.spec import parse_spec
from seepage.integrations.flower import InProcessGrid, record
from seepage.integrations.flower.grid import task

ATTACKS = ["exact_extraction", {"name": "inverting_gradients", "steps": 5}]
QUIET: dict[str, Any] = {"engine": "here", "on_plan": lambda header: None, "advice": False}
STEPS = "several local steps"
CLIENTS: dict[str, tuple[dict[str, Any], str]] = {
    "one step": ({}, ""),
    "clipped": ({"clip_norm": 0.5}, ""),
    "weight decay": ({"weight_decay": 0.01}, ""),
    "accumulation": ({"accumulation": 2, "batch_size": 2}, ""),
    "mixed precision": ({"mixed_precision": True}, "autocast in bfloat16"),
    "momentum": ({"momentum": 0.9, "steps": 2}, STEPS),
    "linear schedule": ({"schedule": "linear", "steps": 2}, STEPS),
    "cosine schedule": ({"schedule": "cosine", "steps": 2}, STEPS),
    "three epochs": ({"epochs": 3, "batch_size": 2}, STEPS),
    "adam": ({"optimizer": "adam", "lr": 1e-3}, "train with adam"),
    "adamw": ({"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.01, "steps": 3}, "train with adamw"),
    "all of it": (
        {
            "optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.01, "schedule": "cosine", "clip_norm": 1.0,
            "mixed_precision": True, "steps": 2,
        },
        "train with adamw",
    ),
}  # fmt: skip
"""What a client does, and what has to be said of it where an attack gets no example for sure."""
READ = (
    "one step", "clipped", "weight decay", "accumulation", "mixed precision", "momentum", "three epochs",
)  # fmt: skip
"""Read exactly, all four examples; of the others exact_extraction says why it does not read them."""
OURS = {"batch_size": "local_batch_size", "epochs": "local_epochs", "steps": "local_steps"}
"""The names that [protocol] of an audit has for fields of a recording."""


def build() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 60), nn.ReLU(), nn.Linear(60, 10))


def simulated(local: dict[str, Any]) -> dict[str, Any]:
    return {"algorithm": "fedavg", "batch_size": 4, **{OURS.get(n, n): v for n, v in local.items()}}


def held(protocol: dict[str, Any]) -> list[int]:
    """The rows that our own loop draws for its client."""
    spec = parse_spec({"model": "build", "data": "digits", "seeds": [0], "protocol": protocol})
    return prepare(spec, model=build)._split(0)[0][0].tolist()  # type: ignore[no-any-return]


def client(folder: Path, rows: list[int], local: dict[str, Any], *, shuffle: bool = False) -> ClientApp:
    """A client as its user writes it: nothing of seepage but the mod."""
    digits, app = load_digits(), ClientApp()
    x = torch.tensor(digits.images[rows] / 16, dtype=torch.float32).unsqueeze(1)
    y = torch.tensor(digits.target[rows])

    @app.train(mods=[record(folder, rows=rows, local={**local, "shuffle": shuffle})])
    def train(message: Message, context: Context) -> Message:
        model = build()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        loader = DataLoader(TensorDataset(x, y), batch_size=local.get("batch_size", len(x)), shuffle=shuffle)
        fit(
            model,
            [batch for _ in range(local.get("epochs", local.get("steps", 1))) for batch in loader],
            local,
        )
        sent = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
        return Message(RecordDict(sent), reply_to=message)

    return app


def fit(model: nn.Module, batches: list[Any], local: dict[str, Any]) -> None:
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    named = {name: local[name] for name in ("momentum", "weight_decay") if name in local}
    name, each = local.get("optimizer", "sgd"), local.get("accumulation", 1)
    optimiser = kind[name](model.parameters(), lr=local["lr"], **{"weight_decay": 0.0, **named})
    steps = len(batches) // each
    if local.get("schedule") == "cosine":
        rate: Any = CosineAnnealingLR(optimiser, T_max=steps)
    else:
        falls = local.get("schedule") == "linear"
        rate = LambdaLR(optimiser, lambda done: 1 - done / steps if falls else 1.0)
    for number, (x, y) in enumerate(batches, start=1):
        with torch.autocast("cpu", torch.bfloat16, enabled=local.get("mixed_precision", False)):
            loss = cross_entropy(model(x), y) / each
        loss.backward()
        if number % each == 0:
            if "clip_norm" in local:
                nn.utils.clip_grad_norm_(model.parameters(), local["clip_norm"])
            optimiser.step()
            rate.step()
            optimiser.zero_grad()


def served(app: ClientApp) -> None:
    """One round of Flower's own FedAvg."""
    grid = InProcessGrid(app, nodes=1)
    with task():
        strategy = FedAvg(min_train_nodes=1, min_available_nodes=1, fraction_evaluate=0.0)
        strategy.start(grid, ArrayRecord(build().state_dict()), num_rounds=1)
    assert not grid.failures


def scores(log: Any) -> list[Any]:
    return [
        (c.attack.key, c.claims, c.label_counts, [(e.scores, e.baseline, e.claimed) for e in c.examples])
        for c in sorted(log.cells, key=lambda cell: cell.attack.key)
    ]


@pytest.mark.parametrize("name", CLIENTS)
def test_a_recorded_client_is_read_as_the_simulated_one(tmp_path: Path, name: str) -> None:
    local, why = CLIENTS[name]
    local = {"optimizer": "sgd", "lr": 0.1, **local}
    if "steps" not in local:
        local = {"epochs": 1, **local}
    protocol = simulated(local)
    served(client(tmp_path / "recorded", held(protocol), local))
    shared = {"model": build, "data": "digits", "attacks": ATTACKS, **QUIET}
    found = seepage.audit(recorded=tmp_path / "recorded", out=tmp_path / "found", **shared)
    played = seepage.audit(protocol=protocol, seeds=[0], out=tmp_path / "played", **shared)
    assert scores(found) == scores(played)
    assert all(cell.status in ("done", "not_applicable") for cell in found.cells)
    assert all((cell.claims or 0) == (cell.claims_right or 0) for cell in found.cells)
    (read,) = (cell for cell in found.cells if cell.attack.name == "exact_extraction")
    if name in READ:
        assert [e.scores["exact"] for e in read.examples] == [1.0] * 4 and not read.hindrances
    (searched,) = (cell for cell in found.cells if cell.attack.name == "inverting_gradients")
    assert any(why in said for said in searched.hindrances) if why else not searched.hindrances
    alone = seepage.audit(
        model=build, recorded={"folder": str(tmp_path / "recorded"), "shape": (1, 8, 8)}, attacks=ATTACKS,
        out=tmp_path / "alone", **QUIET,
    )  # fmt: skip
    assert alone.to_json()["verdict"]["outcome"] == "not_measured"
    done = [cell for cell in alone.cells if cell.status == "done"]
    assert done and all(cell.claims_right is None and not cell.examples for cell in done)


def test_several_epochs_in_an_order_that_nobody_knows(tmp_path: Path) -> None:
    local = {"optimizer": "sgd", "lr": 0.1, "epochs": 3, "batch_size": 2}
    torch.manual_seed(7)
    served(client(tmp_path / "recorded", held(simulated(local)), local, shuffle=True))
    found = seepage.audit(
        model=build,
        data="digits",
        recorded=tmp_path / "recorded",
        attacks=ATTACKS,
        out=tmp_path / "out",
        **QUIET,
    )
    for cell in found.cells:
        assert cell.status in ("done", "not_applicable"), cell.reason
        assert (cell.claims or 0) == (cell.claims_right or 0)
        if cell.attack.name == "inverting_gradients":
            assert any(STEPS in said for said in cell.hindrances)
            assert any("order that the server does not know" in said for said in cell.hindrances)
