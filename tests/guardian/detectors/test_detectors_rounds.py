"""What a client sees who keeps the models of earlier rounds: honest trainings, and a trap in the middle."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from research.guard.honest_models import Setting, examples
from research.guard.honest_rounds import Training, federated
from torch import nn

from seepage.attacks.fishing.class_fishing import class_fishing
from seepage.attacks.traps.trap_weights import trap_weights
from seepage.core.errors import DataError, NotApplicable
from seepage.core.types import Batch, Broadcast, Knowledge, LocalTraining, Verdict
from seepage.guardian import fingerprint, guard, refuse_traps
from seepage.guardian.detectors.fresh_start import fresh_start
from seepage.guardian.detectors.loss_jump import loss_jump, measure
from seepage.guardian.detectors.step_history import off_course, step_history
from seepage.protocol import client, custom_threat, knowledge

SETTING = Setting(model="mlp", data="digits", params={"hidden": (96, 48)})


@pytest.fixture(scope="module")
def training() -> Training:
    return federated(SETTING, initialiser="default", steps=4, seed=77)


def known() -> Knowledge:
    return knowledge(
        custom_threat("malicious_server"),
        "per_client",
        spec=examples(SETTING)[0],
        loss="cross_entropy",
        local=LocalTraining(),
        auxiliary=None,
        seed=3,
    )


def test_training_learns(training: Training) -> None:
    assert len(training.models) == 10
    first, last = (F.cross_entropy(m(training.own.inputs), training.own.labels) for m in training.models[::9])
    assert last < 0.8 * first


@pytest.mark.parametrize(("initialiser", "steps"), [("default", 4), ("gaussian_0.1", 1)])
def test_an_honest_training_of_ten_rounds_never_alarms(initialiser: str, steps: int) -> None:
    honest = federated(SETTING, initialiser=initialiser, steps=steps, seed=78)
    defense, train = refuse_traps(spec=examples(SETTING)[0], strict=True), client(LocalTraining())
    for number, model in enumerate(honest.models):
        report = guard(model, history=honest.models[:number], sample=honest.own, spec=examples(SETTING)[0])
        assert report.verdict is Verdict.CLEAN, report.text()
        assert ("step_history" in report.findings) == (number >= 3)
        assert ("loss_jump" in report.findings) == (number >= 2)
        defense(Broadcast(model, number), honest.own, train)


@pytest.mark.parametrize("attack", [trap_weights, lambda: class_fishing(target_class=1)])
def test_a_trap_in_the_middle_stands_out_by_its_step_alone(training: Training, attack) -> None:
    sent = attack().craft(training.models[5], [], known()).model
    found = step_history(history=training.models[:6])(Broadcast(sent))
    assert found.verdict is Verdict.SUSPICIOUS
    assert step_history(history=training.models[:6])(Broadcast(training.models[6])).verdict is Verdict.CLEAN


def test_a_model_that_forgot_everything_stands_out(training: Training) -> None:
    """Honest trainings have lost fifty times as much in a round, so a loss must be larger than that to tell
    by itself; a fresh model is noticed by the guard as a whole."""
    fresh = SETTING.build(initialiser="gaussian_0.5", seed=5)
    history = training.models[4:9]
    report = guard(fresh, history=history, sample=training.own, spec=examples(SETTING)[0])
    assert report.verdict is not Verdict.CLEAN
    detect = loss_jump(history=history, batch=training.own)
    assert detect(Broadcast(training.models[9])).verdict is Verdict.CLEAN
    with torch.no_grad():
        [*fresh.modules()][-1].weight.mul_(100.0)
    found = detect(Broadcast(fresh))
    assert found.verdict is not Verdict.CLEAN
    assert "loss on the client's examples" in found.evidence


def test_the_wrapper_remembers_rounds(training: Training) -> None:
    """The weights of this model are above suspicion: only a client that remembers refuses it."""
    stranger = SETTING.build(initialiser="gaussian_1", seed=5)
    train = client(LocalTraining())
    assert refuse_traps()(Broadcast(stranger, 6), training.own, train).num_examples == len(training.own)
    defense = refuse_traps()
    for number, model in enumerate(training.models[:6]):
        defense(Broadcast(model, number), training.own, train)
        defense(Broadcast(model, number), training.own, train)  # a second client of the same round
    with pytest.raises(NotApplicable, match=r"refused to train in round 6.*median cosine"):
        defense(Broadcast(stranger, 6), training.own, train)
    # What was refused is not remembered, and the honest model of that round is still welcome.
    defense(Broadcast(training.models[6], 6), training.own, train)
    # A new run of the protocol begins without a past.
    defense(Broadcast(stranger, 0), training.own, train)


def test_off_course_is_the_residual_of_least_squares() -> None:
    rng = np.random.default_rng(0)
    step, earlier = rng.normal(size=50), rng.normal(size=(3, 50))
    fit, *_ = np.linalg.lstsq(earlier.T, step, rcond=None)
    along = fit @ earlier
    off, cosine = off_course(torch.from_numpy(step), torch.from_numpy(earlier))
    assert off == pytest.approx(np.linalg.norm(step - along), rel=1e-6)
    assert cosine == pytest.approx(step @ along / np.linalg.norm(step) / np.linalg.norm(along), rel=1e-6)
    # A longer step on the same way is explained, however long it is.
    assert off_course(torch.tensor([0.0, 9.0]), torch.tensor([[0.0, 1.0], [0.0, 2.0]]))[0] < 1e-5


def test_loss_score_by_hand() -> None:
    # The largest rise so far, .2, is allowed once more.
    assert measure([1.0, 1.2, 0.9, 2.0]).score == pytest.approx(math.log10(2.1 / (0.9 + 0.2 + 0.1)))
    assert measure([1.0, 0.5, math.inf]).score == 9.0


def test_the_loss_is_that_of_the_model_in_eval_mode() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3)).train()
    batch = Batch(torch.rand(12, 6), torch.arange(12) % 3)
    found = loss_jump(history=[model, model], batch=batch)(Broadcast(model))
    assert all(module.training for module in model.modules())
    loss = F.cross_entropy(model.eval()(batch.inputs), batch.labels).item()
    assert found.score == 0
    assert f"is {loss:.3g}, after {loss:.3g}" in found.evidence
    single = nn.Linear(6, 1)  # one logit for two classes
    two = Batch(batch.inputs, batch.labels % 2)
    loss = F.binary_cross_entropy_with_logits(single(two.inputs).squeeze(1), two.labels.float()).item()
    found = loss_jump(history=[single, single], batch=two)(Broadcast(single))
    assert f"is {loss:.3g}" in found.evidence


def test_too_little_history_and_labels_of_another_task() -> None:
    model, batch = nn.Linear(6, 3), Batch(torch.rand(4, 6), torch.tensor([0, 1, 2, 7]))
    with pytest.raises(NotApplicable, match="fewer than three earlier rounds"):
        step_history(history=[model, model])(Broadcast(model))
    with pytest.raises(NotApplicable, match="fewer than two earlier rounds"):
        loss_jump(history=[model], batch=batch)(Broadcast(model))
    with pytest.raises(NotApplicable, match="no labelled examples"):
        loss_jump(history=[model, model])(Broadcast(model))
    with pytest.raises(DataError, match="label 7, but the model 3 outputs"):
        loss_jump(history=[model, model], batch=batch)(Broadcast(model))


def test_a_model_sent_to_one_client_only_shows_in_the_fingerprints(training: Training) -> None:
    clients = [
        training.models[5],
        training.models[5],
        trap_weights().craft(training.models[5], [], known()).model,
    ]
    prints = [fingerprint(model) for model in clients]
    assert prints[0] == prints[1] != prints[2]


def test_a_re_initialised_model_is_noticed_and_an_honest_round_is_not(training: Training) -> None:
    fresh = SETTING.build(initialiser="default", seed=5)
    assert fresh_start(previous=training.models[8])(Broadcast(fresh)).verdict is Verdict.SUSPICIOUS
    assert guard(fresh, previous=training.models[8]).verdict is Verdict.SUSPICIOUS
    for before, now in itertools.pairwise(training.models):
        assert fresh_start(previous=before)(Broadcast(now)).verdict is Verdict.CLEAN
    with pytest.raises(NotApplicable, match="no earlier model"):
        fresh_start()(Broadcast(fresh))
