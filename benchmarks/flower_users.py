"""Boenisch et al. 2021, Section 8.4 through Flower: are the scores of 50 users those of our own loop?

    SEEPAGE_DATA=... python benchmarks/flower_users.py [--backend ray] [--users 50] [--data mnist]

A FedAvg server of Flower sends the trap weights of `boenisch2021/section8.4` to every user, each user takes
one SGD step (learning rate .1) on 100 examples with torch's own optimiser, and a client mod records what it
sends. The recorded updates are read and scored as the table reads and scores those of its loop. The truth
serves to measure only.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.nn import functional as F

from seepage.attacks import Attack
from seepage.attacks.traps.trap_weights import trap_weights
from seepage.core.types import Batch, Broadcast, Crafted, Exchange, Knowledge, LocalTraining, Update
from seepage.data import Dataset, load_data
from seepage.integrations.flower import InProcessGrid, record
from seepage.integrations.flower.grid import task
from seepage.metrics import extraction_scores
from seepage.models.loading import build_model
from seepage.protocol import THREATS, knowledge, local_update
from seepage.record.exchanges import RecordedFolder
from seepage.tables.draws import users as drawn_by_users

BATCH = 100
TRAINING = LocalTraining(algorithm="fedavg", lr=0.1)


def network(dataset: Dataset) -> nn.Module:
    """That of the table: it is the same for all users."""
    shape = {"width": 1000, "hidden": [200], "initialiser": "xavier_uniform"}
    return build_model("fcnn", dataset.spec, seed=0, **shape)


def batches(dataset: Dataset, users: int) -> list[Batch]:
    indices = drawn_by_users(dataset.labels, clients=users, examples_each=BATCH, seed=0)
    return [dataset.batch(index) for index in indices]


def scores(attack: Attack, known: Knowledge, sent: Crafted, update: Update, truth: Batch) -> dict[str, float]:
    """What the server reads of one user's update, beside what the user held."""
    exchange = Exchange(broadcast=Broadcast(sent.model), update=update, clients=(0,), secret=sent.secret)
    found = attack.run([exchange], known)
    if found.rows is None:
        raise SystemExit("the attack read no rows: nothing can be compared.")
    read = extraction_scores(found.values, found.support, found.rows, known.input.to_raw(truth.inputs))
    return {"A": read.active, "P": read.precision_active, "R": read.recall}


def client_app(folder: Path, data: str) -> ClientApp:
    app = ClientApp()

    @app.train(mods=[record(folder)])
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)  # sums in another order round differently
        dataset, user = load_data(data), int(context.node_config["partition-id"])
        batch = batches(dataset, user + 1)[user]
        model = network(dataset)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(model.parameters(), lr=TRAINING.lr)
        F.cross_entropy(model(batch.inputs), batch.labels).backward()
        optimiser.step()
        metrics = MetricRecord({"num-examples": len(batch)})
        arrays = ArrayRecord(model.state_dict())
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def server_app(arrays: ArrayRecord, users: int) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=users, min_available_nodes=users)
        strategy.start(grid, arrays, num_rounds=1)

    return app


def run(server: ServerApp, client: ClientApp, users: int, backend: str) -> None:
    if backend == "here":
        context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
        with task():
            server(InProcessGrid(client, nodes=users), context)
        return
    from flwr.simulation import run_simulation

    resources: dict[str, Any] = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=users, backend_config=resources)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("here", "ray"), default="here")
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--scale", type=float, default=0.8)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    dataset = load_data(chosen.data)
    held = batches(dataset, chosen.users)
    attack = trap_weights(scale=chosen.scale, read="bare")
    known = knowledge(
        THREATS["malicious_server"],
        "per_client",
        spec=dataset.spec,
        loss="cross_entropy",
        local=TRAINING,
        auxiliary=None,
        seed=0,
    )
    crafted = attack.next_model(network(dataset), [], known)
    if crafted is None:
        raise SystemExit("the attack sent nothing.")
    sent = Broadcast(crafted.model)
    ours = [scores(attack, known, crafted, local_update(sent, one, TRAINING), one) for one in held]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "recorded"
        arrays = ArrayRecord(crafted.model.state_dict())
        client = client_app(folder, chosen.data)
        run(server_app(arrays, chosen.users), client, chosen.users, chosen.backend)
        theirs: dict[int, dict[str, float]] = {}
        for one in RecordedFolder.open(folder):
            update = one.exchange(network(dataset)).update
            theirs[one.info.client] = scores(attack, known, crafted, update, held[one.info.client])
    same = sum(theirs.get(user) == ours[user] for user in range(chosen.users))
    print(f"{same} of {chosen.users} users have identical scores ({chosen.backend}).")
    for name in ours[0]:
        ends = [statistics.fmean(read[name] for read in who) for who in (ours, list(theirs.values()))]
        print(f"{name}: our loop {ends[0]:.4f}, Flower {ends[1]:.4f}")


if __name__ == "__main__":
    main()
