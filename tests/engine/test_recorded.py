from __future__ import annotations

import io
import json
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import seepage
from seepage.core.errors import SeepageError, SpecError
from seepage.engine.prepare import prepare
from seepage.engine.recorded import local_training
from seepage.engine.recorded_data import recorded_data
from seepage.engine.source import Simulation
from seepage.engine.spec import parse_spec
from seepage.record.exchanges import ExchangeInfo, Recorder
from seepage.report.terminal import print_summary

ATTACKS = ["analytic_extraction", "exact_extraction", {"name": "inverting_gradients", "steps": 3}]
QUIET = {"on_plan": lambda header: None, "engine": "here"}


def build() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 60), nn.ReLU(), nn.Linear(60, 10))


def for_tumours() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(30, 200), nn.ReLU(), nn.Linear(200, 2))


def record(
    folder: Path, *, kind: str = "gradient", data: str = "digits", model: Any = build, **protocol: Any
) -> None:
    """What a simulation plays, as a recording."""
    spec = parse_spec({"model": "build", "data": data, "seeds": [0], "protocol": protocol})
    prepared = prepare(spec, model=model)
    played, recorder = Simulation(prepared, 0).play(None), Recorder(folder)
    held, _ = prepared._split(0)
    for exchange, rows in zip(played.exchanges, held, strict=True):
        sent, tensors = exchange.broadcast.model.state_dict(), exchange.update.tensors
        if kind == "weights":
            tensors = {name: sent[name] + tensor for name, tensor in tensors.items()}
        recorder.write(
            sent,
            tensors,
            kind=kind,
            round=1,
            client=exchange.clients[0],
            examples=len(rows),
            local={"lr": 0.1, "epochs": 1},
            rows=rows.tolist(),
        )


def scores(log: seepage.api.AuditResult) -> list[Any]:
    return [
        (cell.attack.key, e.client, e.label, e.scores, e.baseline, e.claimed, e.traits)
        for name in sorted({c.attack.key for c in log.cells})
        for cell in log.cells
        if cell.attack.key == name
        for e in cell.examples
    ]


@pytest.mark.parametrize("protocol", [{"clients": 2}, {"algorithm": "fedavg"}])
def test_recorded_and_simulated_runs_of_the_same_exchange_have_identical_scores(
    tmp_path: Path, protocol: dict[str, Any]
) -> None:
    kind = "delta" if protocol.get("algorithm") else "gradient"
    record(tmp_path / "recorded", kind=kind, batch_size=4, **protocol)
    shared = {"model": build, "data": "digits", "attacks": ATTACKS, **QUIET}
    played = seepage.audit(seeds=[0], batch_size=4, **protocol, out=tmp_path / "played", **shared)
    found = seepage.audit(recorded=tmp_path / "recorded", out=tmp_path / "found", **shared)
    assert scores(found) == scores(played) and len(scores(found)) == 4 * 4 * protocol.get("clients", 1)
    assert {c.claims for c in found.cells if c.attack.name == "exact_extraction"} != {0}


@pytest.mark.parametrize("given", ["as it was", "another's", "not normalised"])
def test_a_truth_that_does_not_lead_to_the_update_is_doubted(tmp_path: Path, given: str) -> None:
    """Otherwise a wrong partition reads as a client that gives nothing away."""
    record(tmp_path / "recorded", kind="delta", algorithm="fedavg", batch_size=4)
    (described,) = (tmp_path / "recorded").glob("*.json")
    said = json.loads(described.read_text())
    if given == "another's":
        said["rows"] = [row + 1 for row in said["rows"]]
        described.write_text(json.dumps(said))
    truth: dict[str, Any] = {"data": "digits"}
    if given == "not normalised":
        digits = load_digits()
        pictures = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
        units = {"num_classes": 10, "value_range": (0.0, 1.0), "mean": (0.5,), "std": (0.5,)}
        truth = {"data": (pictures, torch.tensor(digits.target)), "data_options": units}
    found = seepage.audit(
        model=build,
        recorded=tmp_path / "recorded",
        out=tmp_path / "out",
        attacks=ATTACKS[2:],
        **truth,
        **QUIET,
    )
    doubted = "sends another update" in found.to_html().read_text()
    assert doubted is (given != "as it was")


EARLY = {"batch_size": 8, "local_batch_size": 2, "local_steps": 2, "lr": 0.05}
"""Two steps of two of eight examples."""


def recorded_early(folder: Path, **local: Any) -> None:
    record(folder, kind="delta", algorithm="fedavg", **EARLY)
    (described,) = folder.glob("*.json")
    said = json.loads(described.read_text())
    said["local"] = {"lr": 0.05, "steps": 2, "batch_size": 2, **local}
    described.write_text(json.dumps(said))


def test_a_recorded_client_that_stopped_early_is_scored_as_the_simulated_one(tmp_path: Path) -> None:
    recorded_early(tmp_path / "recorded", shuffle=False)
    shared = {"model": build, "data": "digits", "attacks": ATTACKS, **QUIET}
    played = seepage.audit(
        seeds=[0], protocol={"algorithm": "fedavg", **EARLY}, out=tmp_path / "played", **shared
    )
    found = seepage.audit(recorded=tmp_path / "recorded", out=tmp_path / "found", **shared)
    assert scores(found) == scores(played) and len(scores(found)) == 4 * 4
    assert found.scores("exact_extraction")["label_accuracy"] == 1.0


def test_labels_are_not_scored_where_nobody_knows_which_examples_were_trained_on(tmp_path: Path) -> None:
    recorded_early(tmp_path / "recorded")
    found = seepage.audit(
        model=build,
        data="digits",
        recorded=tmp_path / "recorded",
        attacks=ATTACKS,
        out=tmp_path / "out",
        **QUIET,
    )
    for cell in found.cells:
        assert len(cell.examples) == 8 and "label_accuracy" not in cell.batch_scores
        assert any("which of it is not recorded" in note for note in cell.notes)
    (read,) = (cell for cell in found.cells if cell.attack.name == "exact_extraction")
    assert sum(one.scores["exact"] for one in read.examples) == read.claims == read.claims_right == 4
    assert "which of it is not recorded" in found.to_html().read_text()


def test_weights_that_were_sent_are_read_as_their_change(tmp_path: Path) -> None:
    record(tmp_path / "recorded", kind="weights", batch_size=2, algorithm="fedavg", lr=0.5)
    found = seepage.audit(
        model=build, data="digits", recorded=tmp_path / "recorded", attacks="analytic_extraction",
        out=tmp_path / "out", **QUIET,
    )  # fmt: skip
    assert found.scores("analytic_extraction")["psnr"] > 40


def test_without_truth_there_are_claims_and_no_scores(tmp_path: Path) -> None:
    record(tmp_path / "recorded", data="breast_cancer", model=for_tumours, batch_size=4, clients=2)
    found = seepage.audit(
        model=for_tumours, recorded=tmp_path / "recorded", attacks=ATTACKS[:2], out=tmp_path / "out", **QUIET
    )
    assert {c.attack.name for c in found.cells} == {"analytic_extraction", "exact_extraction"}
    assert all(c.claims_right is None and not c.examples and not c.batch_scores for c in found.cells)
    verdict = found.to_json()["verdict"]
    assert verdict["outcome"] == "not_measured" and "vouches for 8 rows" in verdict["headline"]
    arrays = [found.folder.read_arrays(c.id) for c in found.cells if c.attack.name == "exact_extraction"]
    assert [a["claims"].shape for a in arrays] == [(4, 30), (4, 30)]
    assert "no truth to check" in found.to_html().read_text()


def test_claims_that_take_the_declared_number_at_its_word_say_so(tmp_path: Path) -> None:
    """Products of floats prove the rows of a gradient; differences of weights have none."""
    picture = {"modality": "image", "shape": [1, 8, 8], "num_classes": 10, "value_range": [0.0, 1.0]}
    record(tmp_path / "sent", kind="weights", batch_size=4, algorithm="fedavg", lr=0.1)
    record(tmp_path / "computed", data="breast_cancer", model=for_tumours, batch_size=4)
    weights = {"model": build, "recorded": {"folder": str(tmp_path / "sent"), "input": picture}}
    gradient = {"model": for_tumours, "recorded": tmp_path / "computed"}
    for number, conditional in enumerate((True, False)):
        given = weights if conditional else gradient
        found = seepage.audit(**given, attacks=ATTACKS[1:2], out=tmp_path / f"out{number}", **QUIET)
        (cell,) = found.cells
        assert cell.claims > 0 and cell.claims_right is None
        assert cell.claims_if_declared is conditional
        said = "declared the right number of their examples" in found.to_html().read_text()
        assert said is conditional


def test_a_claim_that_is_made_twice_counts_once(tmp_path: Path) -> None:
    """analytic_extraction claims an example for each unit that only it activates."""
    record(tmp_path / "recorded", data="breast_cancer", model=for_tumours, batch_size=2)
    found = seepage.audit(
        model=for_tumours, recorded=tmp_path / "recorded", attacks="analytic_extraction",
        out=tmp_path / "out", **QUIET,
    )  # fmt: skip
    (cell,) = found.cells
    assert cell.claims >= cell.claimed_examples and 1 <= cell.claimed_examples <= 2


def test_no_claim_is_never_called_safe(tmp_path: Path) -> None:
    model = build()
    zeros = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    Recorder(tmp_path / "recorded").write(
        model.state_dict(), zeros, kind="gradient", round=1, client=0, examples=2
    )
    found = seepage.audit(
        model=build, recorded=tmp_path / "recorded", attacks="analytic_extraction", out=tmp_path / "out",
        **QUIET,
    )  # fmt: skip
    said = found.to_json()["verdict"]
    assert said["outcome"] == "not_measured"
    page = found.to_html().read_text()
    for words in (page, said["headline"], *said["details"]):
        assert "no leak" not in words.lower() and "is safe" not in words.lower()
    # whether the attack refused or found nothing, the reader is told why, at once and in the terminal
    assert any("all zeros" in line for line in said["details"])
    with Console(width=100, record=True, file=io.StringIO()) as console:
        print_summary(found, console)
    shown = " ".join(console.export_text().split())
    assert "What may keep attacks from it: The update is all zeros" in shown and "Baseline" not in shown


def test_the_truth_may_be_a_function_of_the_client(tmp_path: Path) -> None:
    record(tmp_path / "recorded", batch_size=4, clients=2)
    from seepage.record.exchanges import RecordedFolder

    data = seepage.engine.prepare.load_data("digits")
    rows = {e.info.client: torch.tensor(e.info.rows) for e in RecordedFolder.open(tmp_path / "recorded")}
    for file in (tmp_path / "recorded").glob("*.json"):
        info = ExchangeInfo.model_validate_json(file.read_bytes()).model_copy(update={"rows": None})
        file.write_text(info.model_dump_json(exclude_none=True))

    def truth(client: int) -> tuple[torch.Tensor, torch.Tensor]:
        return data.inputs[rows[client]], data.labels[rows[client]]

    found = seepage.audit(
        model=build, data=truth, recorded=tmp_path / "recorded", attacks="exact_extraction",
        out=tmp_path / "out", data_options={"num_classes": 10}, **QUIET,
    )  # fmt: skip
    assert found.scores("exact_extraction")["exact"] == 1.0
    with pytest.raises(SpecError, match="which of its examples client 0 holds"):
        seepage.audit(model=build, data="digits", recorded=tmp_path / "recorded", out=tmp_path / "no")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"threat": "malicious_server"}, "these exchanges are over"),
        ({"recorded": "absent"}, "is no folder"),
        ({"recorded": {"folder": "recorded", "clients": [9]}}, "no exchange of these rounds and clients"),
        ({"model": "torch.nn:Linaer"}, "did you mean 'Linear'"),
        ({"model": "mpl"}, "did you mean 'mlp'"),
        ({"model": nn.Linear(3, 3)}, "does not tell|does not have|does not take"),
    ],
)
def test_what_cannot_go_together_gets_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    record(Path("recorded"), batch_size=2)
    with pytest.raises(SeepageError, match=said):
        log = seepage.audit(
            **{"model": build, "recorded": "recorded", "attacks": "analytic_extraction", **settings, **QUIET}
        )
        raise SpecError(next(cell.reason for cell in log.cells if cell.status == "failed"))


def test_local_training_is_known_where_it_can_be_replayed() -> None:
    def known(kind: str, **local: Any) -> Any:
        return local_training(ExchangeInfo(kind=kind, round=1, client=1, dtype="float32", local=local))

    assert known("gradient").algorithm == "fedsgd"
    assert known("delta") is None and known("weights", lr=0.1) is None
    assert known("delta", lr=0.1, steps=3, batch_size=2).num_steps(20) == 3
    assert known("weights", lr=0.1, epochs=2, batch_size=5).num_steps(10) == 4
    assert known("delta", lr=0.1, steps=1, optimizer="rmsprop") is None
    assert known("delta", lr=0.1, epochs=2, shuffle=True).shuffle_seed is not None


def test_what_a_server_knows_besides_is_given_with_the_audit(tmp_path: Path) -> None:
    """FLARE tells a recorder no learning rate, and a server has one all the same."""
    record(tmp_path / "recorded", kind="delta", batch_size=4, algorithm="fedavg", lr=0.1)
    for file in (tmp_path / "recorded").glob("*.json"):
        said = json.loads(file.read_text())
        file.write_text(json.dumps({**said, "local": {}, "examples": None}))

    def knowledge(**known: Any) -> str:
        found = seepage.audit(
            model=build, recorded={"folder": str(tmp_path / "recorded"), "shape": (1, 8, 8), **known},
            attacks="exact_extraction", out=tmp_path / str(len(known)), **QUIET,
        )  # fmt: skip
        return found.header.threat.name + " ".join(found.cells[0].hindrances)

    assert "-local_training" in (alone := knowledge()) and "-batch_size" in alone
    told = knowledge(examples=4, local={"lr": 0.1, "steps": 1})
    assert "-local_training" not in told and "-batch_size" not in told and "not recorded" not in told


def test_a_setting_of_the_training_that_does_not_exist_is_named_beside_those_that_do() -> None:
    with pytest.raises(SpecError, match=r"'recorded.local.stps': did you mean 'recorded.local.steps'"):
        parse_spec({"model": "mlp", "recorded": {"folder": "x", "local": {"stps": 1}}})


def test_thousands_of_exchanges_need_the_memory_of_one(tmp_path: Path) -> None:
    """A model of two megabytes, 25 times: 100 MB of updates and models, if anybody kept them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(500, 1000), nn.ReLU(), nn.Linear(1000, 10))
    update = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    recorder = Recorder(tmp_path / "recorded")
    for client in range(25):
        recorder.write(model.state_dict(), update, kind="gradient", round=1, client=client, examples=1)

    def run(count: int) -> float:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seepage.audit(
            model=model, recorded={"folder": str(tmp_path / "recorded"), "clients": list(range(count))},
            attacks="analytic_extraction", out=tmp_path / f"out{count}", **QUIET,
        )  # fmt: skip
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024

    run(3)
    assert run(25) < 30


def test_what_is_recorded_of_a_client_s_training_reaches_the_replay() -> None:
    said = {"schedule": "cosine", "accumulation": 2, "clip_norm": 0.5, "mixed_precision": True}
    local = {"optimizer": "adamw", "lr": 0.01, "steps": 3, "weight_decay": 0.1, **said}
    info = ExchangeInfo.model_validate(
        {"kind": "delta", "round": 1, "client": 0, "dtype": "float32", "local": local}
    )
    training = local_training(info)
    assert training is not None and training.optimizer == "adamw" and not training.plain
    assert {name: getattr(training, name) for name in said} == said


def test_the_truth_of_a_client_may_be_a_loader_and_what_cannot_be_is_told(tmp_path: Path) -> None:
    record(tmp_path / "recorded", kind="gradient", batch_size=4, clients=2)
    x, y = torch.rand(8, 1, 8, 8), torch.arange(8)
    loaders = [DataLoader(TensorDataset(x[own], y[own]), batch_size=4) for own in (slice(0, 4), slice(4, 8))]
    asked = parse_spec({"model": "mlp", "recorded": {"folder": str(tmp_path / "recorded")}})

    def truth(load: Any) -> Any:
        return recorded_data(asked, load, lambda spec: build())

    found = truth(lambda client: loaders[client])
    assert torch.equal(found.inputs, x)
    assert torch.equal(found.labels, y)
    assert found.owners is not None and found.owners.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    with pytest.raises(SpecError, match="returned 2 loaders for client 0: return the one"):
        truth(lambda client: (loaders[0], loaders[1]))
    with pytest.raises(SpecError, match="failed for client 0 with ZeroDivisionError"):
        truth(lambda client: 1 / client)
    with pytest.raises(SpecError, match="takes partition_id and num_partitions, which an"):
        truth(lambda partition_id, num_partitions: (x, y))
