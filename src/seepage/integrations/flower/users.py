"""Users of a FedAvg server of Flower: what they send when each takes one step of torch's own SGD.

For comparing our loop with the framework: model, examples and learning rate are given, all else is Flower's.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

from seepage.core.errors import DataError
from seepage.core.types import Batch, Update
from seepage.integrations.flower.app import Backend, simulate
from seepage.integrations.flower.mod import record
from seepage.record.exchanges import RecordedFolder


def served(model: nn.Module, batches: Sequence[Batch], *, lr: float, backend: Backend) -> list[Update]:
    """The update of each user, as a client mod recorded it on its way out."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "recorded"
        for user, batch in enumerate(batches):
            save_file({"x": batch.inputs, "y": batch.labels}, Path(place) / f"{user}.safetensors")
        client = _client(copy.deepcopy(model), Path(place), folder, lr)
        server = _server(ArrayRecord(model.state_dict()), len(batches))
        failures = simulate(server, client, nodes=len(batches), backend=backend)
        found = {one.info.client: one.exchange(model).update for one in RecordedFolder.open(folder)}
    if len(found) < len(batches):
        said = f": {failures[0]}" if failures else "; Flower's log says why." if backend == "ray" else "."
        raise DataError(f"{len(batches) - len(found)} of {len(batches)} users of Flower sent nothing{said}")
    return [found[user] for user in range(len(batches))]


def _client(model: nn.Module, place: Path, folder: Path, lr: float) -> ClientApp:
    app = ClientApp()

    @app.train(mods=[record(folder)])
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)  # sums in another order round differently
        mine = load_file(place / f"{context.node_config['partition-id']}.safetensors")
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(model.parameters(), lr=lr)
        optimiser.zero_grad()
        F.cross_entropy(model(mine["x"]), mine["y"]).backward()
        optimiser.step()
        metrics = MetricRecord({"num-examples": len(mine["y"])})
        answer = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(answer, reply_to=message)

    return app


def _server(arrays: ArrayRecord, users: int) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=users, min_available_nodes=users)
        strategy.start(grid, arrays, num_rounds=1)

    return app
