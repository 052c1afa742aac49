"""Models that say numbers in the place of a class: regressions, and several flags at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.metrics import r2_score
from torch import nn

import seepage
from seepage.core.errors import DataError, ModelError
from seepage.core.types import Batch, Broadcast, LocalTraining
from seepage.data import as_numbers, load_data
from seepage.engine.training import accuracy
from seepage.protocol import draw_clients, local_update
from seepage.record import AuditLog


def diabetes() -> tuple[torch.Tensor, torch.Tensor]:
    """442 patients, ten columns, and how far the illness went a year later."""
    found = load_diabetes()
    return torch.tensor(found.data * 20, dtype=torch.float32), torch.tensor(found.target / 100 + 0.001)


def flagged_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures, and of each digit whether it is odd, large, round."""
    found = load_digits()
    y = found.target
    flags = np.stack([y % 2, y > 4, np.isin(y, [0, 6, 8, 9])], axis=1)
    return torch.tensor(found.images[:, None] / 16, dtype=torch.float32), torch.tensor(flags)


def audited(
    model: nn.Module, data: tuple[torch.Tensor, torch.Tensor], out: Path, **options: object
) -> AuditLog:
    return seepage.audit(model=model, data=data, seeds=[0], advice=False, out=out, **options)  # type: ignore[arg-type]


def exact(log: AuditLog, attack: str) -> list[bool]:
    (cell,) = [cell for cell in log.cells if cell.attack.name == attack]
    assert cell.status == "done", cell.reason
    return [bool(example.scores["exact"]) for example in cell.examples]


@pytest.mark.parametrize(
    ("targets", "same"),
    [(torch.rand(5, 2) * 3, nn.MSELoss()), ((torch.rand(5, 2) > 0.5).float(), nn.BCEWithLogitsLoss())],
)
def test_a_client_s_gradient_is_torch_s_own(targets: torch.Tensor, same: nn.Module) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(4, 2), torch.rand(5, 4)
    sent = local_update(Broadcast(model), Batch(x, targets), LocalTraining())
    (wanted,) = torch.autograd.grad(same(model(x), targets), model.weight)
    assert torch.equal(sent.tensors["weight"], wanted)


def test_one_example_of_a_regression_is_read_exactly(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 40), nn.ReLU(), nn.Linear(40, 1))
    log = audited(model, diabetes(), tmp_path, batch_size=1, attacks=["exact_extraction"])
    assert exact(log, "exact_extraction") == [True]
    assert exact(log, "prior_only") == [False]


def test_pictures_behind_flags_are_read_and_claimed_by_their_grid(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 3))
    log = audited(model, flagged_digits(), tmp_path, batch_size=8, attacks=["exact_extraction"])
    (cell,) = [cell for cell in log.cells if cell.attack.name == "exact_extraction"]
    assert sum(exact(log, "exact_extraction")) >= 6
    assert cell.claims_right == cell.claims
    assert "label_accuracy" not in cell.batch_scores


def test_a_batch_of_a_regression_is_read_where_no_neuron_is_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 1))
    log = audited(model, diabetes(), tmp_path, batch_size=6, attacks=["exact_extraction"])
    (cell,) = [cell for cell in log.cells if cell.attack.name == "exact_extraction"]
    assert all(exact(log, "exact_extraction"))
    assert cell.claims == 0  # how often each was counted, nothing says


def test_a_search_finds_the_number_together_with_the_row(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 30), nn.Sigmoid(), nn.Linear(30, 1))
    log = audited(model, diabetes(), tmp_path, batch_size=1, attacks=["deep_leakage"])
    (cell,) = [cell for cell in log.cells if cell.attack.name == "deep_leakage"]
    (example,) = cell.examples
    assert example.scores["rmse"] < 0.1 * example.baseline["rmse"]
    assert any("was searched for together" in note for note in cell.notes)


def test_what_needs_classes_says_so(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(10, 30), nn.ReLU(), nn.Linear(30, 1))
    attacks = ["class_fishing", "binary_fishing"]
    log = audited(model, diabetes(), tmp_path, batch_size=2, attacks=attacks, threat="malicious_server")
    for cell in log.cells:
        if cell.attack.name != "prior_only":
            assert cell.status == "not_applicable"
            assert "mean_squared_error" in cell.reason


def test_a_csv_column_that_is_named_may_hold_numbers(tmp_path: Path) -> None:
    path = tmp_path / "houses.csv"
    path.write_text("rooms,price\n3,2.5\n4,3\n5,4.25\n", encoding="utf-8")
    assert load_data(path, label="price").labels.tolist() == [[2.5], [3.0], [4.25]]
    with pytest.raises(DataError, match="or this one, if it holds what a regression is to say"):
        load_data(path)


def test_whole_numbers_are_numbers_where_the_loss_wants_them(tmp_path: Path) -> None:
    found = load_breast_cancer()
    rows = torch.tensor(found.data[:, :5], dtype=torch.float32)
    ages = torch.tensor(found.data[:, 3]).long()
    log = audited(
        nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1)),
        (rows, ages),
        tmp_path,
        batch_size=1,
        attacks=["analytic_extraction"],
        loss="mean_squared_error",
    )
    assert all(cell.status == "done" for cell in log.cells)
    data = as_numbers(load_data((rows, ages)))
    assert data.spec.num_targets == 1
    assert torch.equal(data.labels.squeeze(1).long(), ages)


def test_a_loss_that_does_not_fit_the_targets_is_refused(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(10, 1))
    with pytest.raises(ModelError, match="does not fit targets that are numbers"):
        audited(model, diabetes(), tmp_path, batch_size=1, attacks=["exact_extraction"], loss="cross_entropy")


def test_clients_cannot_be_drawn_by_classes_that_are_not_there() -> None:
    with pytest.raises(DataError, match="goes by classes"):
        draw_clients(torch.rand(10, 1), clients=2, examples_each=2, scheme="dirichlet")


def test_how_well_a_regression_does_is_the_variance_that_it_explains() -> None:
    x, y = diabetes()
    torch.manual_seed(0)
    weights = torch.linalg.lstsq(x, y.float().unsqueeze(1) - y.mean()).solution
    model = nn.Linear(10, 1)
    with torch.no_grad():
        model.weight.copy_(weights.T)
        model.bias.fill_(float(y.mean()))
    explained = accuracy(model, Batch(x, y.float().unsqueeze(1)), loss="mean_squared_error")
    assert explained == pytest.approx(r2_score(y, model(x).detach().squeeze(1)), abs=1e-6)
    flags = Batch(torch.tensor([[1.0, -1.0], [-1.0, -1.0]]), torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    assert accuracy(nn.Identity(), flags, loss="multi_label") == 0.75


def test_the_gate_takes_numbers_too() -> None:
    torch.manual_seed(0)
    x, y = diabetes()
    model = nn.Sequential(nn.Linear(10, 40), nn.ReLU(), nn.Linear(40, 1))
    assert seepage.gate(model, None, (x[:1], y[:1]), advice=False).exposed == [0]
    pictures, flags = flagged_digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 3))
    assert len(seepage.gate(model, None, (pictures[:4], flags[:4]), advice=False).exposed) == 4
