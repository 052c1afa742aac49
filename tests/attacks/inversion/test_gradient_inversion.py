"""The inversion loop on models small enough to know the answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from seepage.attacks.inversion.deep_leakage import deep_leakage, idlg
from seepage.attacks.inversion.distances import cosine, euclidean
from seepage.attacks.inversion.gradient_inversion import GradientInversion
from seepage.attacks.inversion.inverting_gradients import inverting_gradients
from seepage.attacks.inversion.lbfgs import lbfgs
from seepage.attacks.inversion.objective import Candidates, fastest_matching, update_matching
from seepage.attacks.inversion.see_through_gradients import see_through_gradients
from seepage.attacks.inversion.tag import tag
from seepage.core.types import Batch, Broadcast, Exchange, InputSpec, Knowledge, LocalTraining, Modality
from seepage.protocol import aggregate, local_update

from .setting import (
    conv_net,
    dense_net,
    exchange_for,
    image_spec,
    knowledge,
    problem_for,
    psnr,
    random_batch,
)

FOUR_STEPS = LocalTraining(algorithm="fedavg", batch_size=1, epochs=2, lr=0.1)


def attack_on(
    attack: GradientInversion, model: nn.Module, spec: InputSpec, batch: Batch, local: LocalTraining
) -> float:
    """PSNR of the worst example."""
    exchange = exchange_for(model, batch, local)
    return psnr(attack.run([exchange], knowledge(spec, local)).values, batch.inputs)


@pytest.mark.parametrize("labels", [[1], [1, 3]])
def test_a_gradient_gives_the_images_away(labels: list[int]) -> None:
    spec = image_spec()
    assert attack_on(idlg(steps=120), conv_net(spec), spec, random_batch(spec, labels), LocalTraining()) > 40


def test_four_local_steps_give_the_images_away() -> None:
    spec, batch = image_spec(size=6), random_batch(image_spec(size=6), [1, 3])
    assert FOUR_STEPS.num_steps(len(batch)) == 4
    assert attack_on(idlg(steps=60), conv_net(spec), spec, batch, FOUR_STEPS) > 40


def test_labels_are_found_together_with_the_image() -> None:
    spec, batch = image_spec(), random_batch(image_spec(), [3])
    exchange = replace(exchange_for(conv_net(spec), batch, LocalTraining()), labels=None)
    found = deep_leakage(steps=100).run([exchange], knowledge(spec, LocalTraining()))
    assert psnr(found.values, batch.inputs) > 40
    assert found.label_counts is not None and found.label_counts.tolist() == [0, 0, 0, 1, 0]


def test_signed_adam_recovers_an_image() -> None:
    spec, batch = image_spec(), random_batch(image_spec(), [3])
    assert attack_on(inverting_gradients(steps=300), dense_net(spec), spec, batch, LocalTraining()) > 40


def test_duplicate_labels_in_a_batch() -> None:
    spec, batch = image_spec(size=6), random_batch(image_spec(size=6), [3, 3, 0])
    model = dense_net(spec, width=60, scale=4.0)  # curved enough to tell examples of one class apart
    assert attack_on(idlg(steps=200), model, spec, batch, LocalTraining()) > 40


def test_an_aggregate_of_two_clients_is_one_batch() -> None:
    spec, local = image_spec(), LocalTraining()
    model, batches = conv_net(spec), [random_batch(spec, [y], seed=y) for y in (1, 4)]
    update = aggregate([local_update(Broadcast(model), b, local) for b in batches], "secure_sum")
    exchange = Exchange(broadcast=Broadcast(model), update=update, clients=(0, 1))
    found = idlg(steps=150).run([exchange], knowledge(spec, local))
    assert psnr(found.values, torch.cat([b.inputs for b in batches])) > 40


def test_values_are_raw_and_inside_the_range() -> None:
    spec = replace(image_spec(), mean=(0.4,), std=(0.2,))
    raw = random_batch(spec, [3])
    batch = Batch(spec.to_model(raw.inputs), raw.labels)
    exchange = exchange_for(dense_net(spec), batch, LocalTraining())
    found = inverting_gradients(steps=300).run([exchange], knowledge(spec, LocalTraining()))
    assert psnr(found.values, raw.inputs) > 35 and not found.model_units
    assert found.values.min() >= 0 and found.values.max() <= 1 + 1e-6


def test_unknown_number_of_images_is_found_by_the_objective() -> None:
    spec, batch = image_spec(), random_batch(image_spec(), [1, 3])
    exchange = exchange_for(conv_net(spec), batch, LocalTraining(), grant_labels=False, grant_count=False)
    found = idlg(steps=120, counts=[1, 2, 3]).run([exchange], knowledge(spec, LocalTraining()))
    assert len(found) == 2 and psnr(found.values, batch.inputs) > 40
    assert any(note.startswith("Numbers of examples were tried") for note in found.notes)


def test_unknown_number_is_inferred_with_the_labels_where_no_counts_are_given() -> None:
    spec, batch = image_spec(), random_batch(image_spec(), [1, 3])
    exchange = exchange_for(conv_net(spec), batch, LocalTraining(), grant_labels=False, grant_count=False)
    assert len(idlg(steps=5).run([exchange], knowledge(spec, LocalTraining()))) == 2


def test_restarts_are_chosen_by_the_objective_alone() -> None:
    """The restart with the lower objective wins even where the other one is the truth itself."""
    spec, batch = image_spec(), random_batch(image_spec(), [3])
    exchange = exchange_for(conv_net(spec), batch, LocalTraining())

    def biased(simulated: object, observed: object, weights: object) -> Tensor:
        return 1 - cosine(simulated, observed)  # type: ignore[arg-type]  # worst at the truth

    def start(problem: object, restarts: int, generator: torch.Generator) -> Tensor:
        noise = torch.rand(batch.inputs.shape, generator=generator, dtype=torch.float64)
        return torch.stack([batch.inputs, noise])

    attack = GradientInversion(
        solver=lbfgs(steps=1, step_size=1e-9), distance=biased, start=start, restarts=2
    )
    found = attack.run([exchange], knowledge(spec, LocalTraining()))
    assert psnr(found.values, batch.inputs) < 20
    honest = replace(attack, distance=cosine).run([exchange], knowledge(spec, LocalTraining()))
    assert psnr(honest.values, batch.inputs) > 60


@pytest.mark.parametrize("distance", [cosine, euclidean])
@pytest.mark.parametrize("soft", [False, True])
def test_vmapped_restarts_equal_looped_ones(distance: object, soft: bool) -> None:
    spec, batch = image_spec(), random_batch(image_spec(), [1, 3])
    problem = problem_for(conv_net(spec, norm=True), spec, batch, LocalTraining())
    problem.model.eval()
    inputs = torch.rand(3, 2, *spec.shape, dtype=torch.float64)
    labels = torch.randn(3, 2, 5, dtype=torch.float64) if soft else torch.randint(5, (3, 2))
    start = Candidates(inputs, labels)
    batched, vectorised = fastest_matching(problem, distance, None, start)  # type: ignore[arg-type]
    assert vectorised
    one, other = batched(start), update_matching(problem, distance)(start)  # type: ignore[arg-type]
    torch.testing.assert_close(one.values, other.values)
    for a, b in zip(one.gradients, other.gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_a_model_that_vmap_refuses_is_searched_restart_by_restart() -> None:
    class Awkward(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = dense_net(image_spec())

        def forward(self, x: Tensor) -> Tensor:
            if x.detach().sum().item() > 1e9:  # data-dependent control flow: no batching rule
                return self.net(x * 0)
            return self.net(x)

    spec, batch = image_spec(), random_batch(image_spec(), [3])
    problem = problem_for(Awkward(), spec, batch, LocalTraining())
    start = Candidates(torch.rand(2, 1, *spec.shape, dtype=torch.float64), torch.full((2, 1), 3))
    assert fastest_matching(problem, cosine, None, start)[1] is False
    assert attack_on(inverting_gradients(steps=200, restarts=2), Awkward(), spec, batch, LocalTraining()) > 30


def text_setting() -> tuple[nn.Module, InputSpec, Batch]:
    torch.manual_seed(1)
    spec = InputSpec(modality=Modality.TEXT, shape=(4,), num_classes=2, vocabulary=30, value_range=None)
    model = nn.Sequential(nn.Embedding(30, 6), nn.Flatten(), nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 2))
    return model.double(), spec, Batch(torch.tensor([[7, 3, 29, 7]]), torch.tensor([1]))


@pytest.mark.parametrize("attack", [tag(steps=300), idlg(steps=100)])
def test_tokens_are_recovered_through_embeddings(attack: GradientInversion) -> None:
    model, spec, batch = text_setting()
    found = attack.run([exchange_for(model, batch, LocalTraining())], knowledge(spec, LocalTraining()))
    assert found.values.tolist() == batch.inputs.tolist()
    assert any("the 3 whose embedding the update moves" in note for note in found.notes)


def test_tokens_without_the_embedding_update_are_the_nearest_of_all() -> None:
    model, spec, batch = text_setting()
    model[0].weight.requires_grad_(False)
    found = tag(steps=300).run(
        [exchange_for(model, batch, LocalTraining())], knowledge(spec, LocalTraining())
    )
    assert found.values.tolist() == batch.inputs.tolist()


def test_a_table_row_is_recovered() -> None:
    spec = InputSpec(modality=Modality.TABULAR, shape=(12,), num_classes=3, value_range=None)
    batch = Batch(torch.randn(1, 12, dtype=torch.float64), torch.tensor([2]))
    found = idlg(steps=200).run(
        [exchange_for(dense_net(spec), batch, LocalTraining())], knowledge(spec, LocalTraining())
    )
    torch.testing.assert_close(found.values, batch.inputs, atol=1e-3, rtol=0)
    assert any("categories" in note for note in found.notes)


def test_see_through_gradients_uses_statistics_that_were_sent() -> None:
    spec, local = image_spec(), LocalTraining(batch_norm="train", send_buffers=True)
    batch = random_batch(spec, [1, 3])
    model = conv_net(spec, norm=True)
    score = attack_on(
        see_through_gradients(steps=200, tv=0, noise=0, step_size=0.3), model, spec, batch, local
    )
    grey = psnr(torch.full_like(batch.inputs, 0.5), batch.inputs)
    assert score > grey + 8


def test_several_exchanges_are_pooled() -> None:
    spec, local = image_spec(), LocalTraining()
    model, batches = dense_net(spec), [random_batch(spec, [y], seed=y) for y in (1, 4)]
    found = idlg(steps=100).run([exchange_for(model, b, local) for b in batches], knowledge(spec, local))
    assert found.source is not None and found.source.tolist() == [0, 1]
    assert psnr(found.values, torch.cat([b.inputs for b in batches])) > 40


def test_the_same_seed_gives_the_same_result_and_the_model_stays_as_it_was() -> None:
    spec, batch = image_spec(), random_batch(image_spec(), [3])
    model = conv_net(spec, norm=True)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    exchange = exchange_for(model, batch, LocalTraining())
    known = knowledge(spec, LocalTraining())
    attack = inverting_gradients(steps=20, restarts=2)
    one, other = attack.run([exchange], known), attack.run([exchange], known)
    assert torch.equal(one.values, other.values)
    different = attack.run([exchange], Knowledge(input=spec, local=known.local, seed=1))
    assert not torch.equal(one.values, different.values)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.training
