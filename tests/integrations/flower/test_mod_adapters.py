"""Fine-tuning with peft in Flower: adapters alone travel, under peft's own short names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from tests.models.families import built
from torch import nn

import seepage
from seepage.core.errors import LogError, SpecError
from seepage.integrations.flower import InProcessGrid, record
from seepage.integrations.flower.grid import task
from seepage.record.exchanges import RecordedFolder, Recorder

peft = pytest.importorskip("peft", reason="the extra transformers is not installed")

TARGETS = {"gpt2": ["c_attn"], "bert": ["query", "value"]}
RATE = 1.0
LOCAL = {"optimizer": "sgd", "lr": RATE, "steps": 1}


def gpt2() -> nn.Module:
    return adapted("gpt2")


def bert() -> nn.Module:
    return adapted("bert")


def drawn() -> nn.Module:
    other = torch.rand(())  # before the model sets a seed of its own
    model = bert()
    model.get_parameter("base_model.model.bert.embeddings.word_embeddings.weight").data.add_(other)
    return model


def adapted(family: str) -> nn.Module:
    torch.manual_seed(0)
    config = peft.LoraConfig(r=16, target_modules=TARGETS[family], task_type="SEQ_CLS")
    model: nn.Module = peft.get_peft_model(built(family, "SequenceClassification"), config)
    model.config.pad_token_id = 0  # type: ignore[union-attr]
    return model.eval()  # without dropout


def held(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(client)
    return torch.randint(1, 60, (1, 6), generator=drawn), torch.tensor([client % 3])


def recorded(folder: Path, build: Callable[[], nn.Module]) -> RecordedFolder:
    """By the client mod, in an app that sends what `get_peft_model_state_dict` gives."""
    app = ClientApp()

    @app.train(mods=[record(folder, local=LOCAL)])
    def train(message: Message, context: Context) -> Message:
        model = build()
        peft.set_peft_model_state_dict(model, message.content.array_records["arrays"].to_torch_state_dict())
        inputs, labels = held(int(context.node_config["partition-id"]))
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)
        model(input_ids=inputs, labels=labels).loss.backward()
        optimizer.step()
        content = RecordDict({"arrays": ArrayRecord(peft.get_peft_model_state_dict(model))})
        content["metrics"] = MetricRecord({"num-examples": len(labels)})
        return Message(content, reply_to=message)

    with task():
        FedAvg(fraction_evaluate=0.0).start(
            InProcessGrid(app, nodes=2), ArrayRecord(peft.get_peft_model_state_dict(build())), num_rounds=1
        )
    return RecordedFolder.open(folder)


@pytest.mark.parametrize("build", [gpt2, bert])
def test_short_names_are_those_of_the_model_and_the_base_is_the_model_s_own(
    tmp_path: Path, build: Callable[[], nn.Module]
) -> None:
    first = recorded(tmp_path / "recorded", build)[0]
    model = build()
    exchange = first.exchange(build())
    assert set(exchange.update.tensors) == {n for n, p in model.named_parameters() if p.requires_grad}
    inputs, labels = held(0)
    model(input_ids=inputs, labels=labels).loss.backward()
    for name, parameter in model.named_parameters():
        assert torch.equal(exchange.broadcast.model.get_parameter(name), parameter), name
        if parameter.grad is not None:
            moved = exchange.update.tensors[name]
            assert torch.allclose(moved, -RATE * parameter.grad, atol=1e-6), name


@pytest.mark.parametrize("truth", [held, None])
def test_a_decoder_s_text_is_read_from_its_adapters_alone(tmp_path: Path, truth: object) -> None:
    folder = tmp_path / "recorded"
    recorded(folder, gpt2)
    given: dict[str, Any] = (
        {"recorded": folder, "data": truth} if truth else {"recorded": {"folder": str(folder), "shape": [6]}}
    )
    found = seepage.audit(
        **given, model=gpt2, attacks="exact_text", out=tmp_path / "out",
        engine="here", on_plan=lambda header: None,
    )  # fmt: skip
    cells = [cell for cell in found.cells if cell.attack.name == "exact_text"]
    assert [cell.status for cell in cells] == ["done", "done"]
    for client, cell in enumerate(cells):
        if truth:
            assert cell.claims_right == 1 and cell.examples[0].scores["token_accuracy"] == 1.0
        else:
            claimed = found.folder.read_arrays(cell.id)["claims"]
            assert claimed.tolist() == held(client)[0].tolist()
            assert cell.claims_right is None and not cell.examples


def test_a_base_that_is_drawn_anew_at_every_building_is_refused(tmp_path: Path) -> None:
    recorded(tmp_path / "recorded", bert)
    with pytest.raises(SpecError, match=r"lacks 'base_model.*word_embeddings.weight' and --model draws it"):
        seepage.audit(
            recorded=tmp_path / "recorded", model=drawn, data=held, attacks="tag", out=tmp_path / "out",
            engine="here", on_plan=lambda header: None,
        )  # fmt: skip


def test_what_clients_train_has_to_be_recorded(tmp_path: Path) -> None:
    """Frozen layers may be left out, with their statistics; layers that are trained may not."""
    model = nn.Sequential(nn.BatchNorm1d(2).requires_grad_(False), nn.Linear(2, 2))
    head = {name: value for name, value in model.state_dict().items() if name.startswith("1.")}
    Recorder(tmp_path).write(head, head, kind="weights", round=1, client=0)
    (one,) = RecordedFolder.open(tmp_path)
    assert set(one.exchange(model).update.tensors) == {"1.weight", "1.bias"}
    with pytest.raises(LogError, match="lacks 4 of the model's tensors"):
        one.exchange(nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)))
