"""R-GAP end to end: what it recovers, what it claims, and what it refuses."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from seepage.attacks.closed_form.recursion.chain import trace_chain
from seepage.attacks.closed_form.recursive_inversion import RecursiveInversion, recursive_inversion
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.types import (
    Batch,
    Broadcast,
    Exchange,
    InputSpec,
    Knowledge,
    LocalTraining,
    Modality,
    Reconstruction,
    UpdateKind,
)
from seepage.models.gradients import one_step_gradient
from seepage.protocol import local_update

IMAGES = InputSpec(modality=Modality.IMAGE, shape=(2, 10, 10), num_classes=4)
ROWS = InputSpec(modality=Modality.TABULAR, shape=(12,), num_classes=4)


def conv_chain(
    activation: nn.Module, *, seed: int = 0, dtype: torch.dtype = torch.float64, norm: bool = False
) -> nn.Sequential:
    torch.manual_seed(seed)
    norms: list[nn.Module] = []
    if norm:
        norms = [nn.BatchNorm2d(8)]
        nn.init.uniform_(norms[0].running_var, 0.5, 1.5)  # type: ignore[arg-type]
        nn.init.normal_(norms[0].running_mean)  # type: ignore[arg-type]
    return nn.Sequential(
        nn.Conv2d(2, 8, 5, padding=2, stride=2),
        *norms,
        activation,
        nn.Conv2d(8, 8, 3, padding=1),
        activation,
        nn.Flatten(),
        nn.Linear(200, 4),
    ).to(dtype)


def dense_chain(activation: nn.Module) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(12, 9), activation, nn.Linear(9, 30), activation, nn.Linear(30, 4)
    ).double()


def example(spec: InputSpec, label: int = 2, *, seed: int = 7, dtype: torch.dtype = torch.float64) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return Batch(torch.rand((1, *spec.shape), generator=generator, dtype=dtype), torch.tensor([label]))


def seen(model: nn.Module, data: Batch, local: LocalTraining | None = None) -> Exchange:
    update = local_update(Broadcast(model), data, local or LocalTraining())
    return Exchange(broadcast=Broadcast(model), update=update, clients=(0,))


def run(exchange: Exchange, spec: InputSpec, local: LocalTraining | None = None) -> Reconstruction:
    return recursive_inversion().run([exchange], Knowledge(input=spec, local=local))


def psnr(found: Tensor, truth: Tensor) -> float:
    return float(-10 * (found.double() - truth.double()).square().mean().log10())


ACTIVATIONS = [nn.Sigmoid(), nn.Tanh(), nn.LeakyReLU(0.2), nn.Softplus()]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("kind", ["conv", "dense"])
def test_one_example_comes_back_with_its_label(activation: nn.Module, kind: str) -> None:
    spec = IMAGES if kind == "conv" else ROWS
    model = conv_chain(activation) if kind == "conv" else dense_chain(activation)
    for label in range(4):
        data = example(spec, label, seed=label)
        found = run(seen(model, data), spec)
        assert psnr(found.values, data.inputs) > 60
        assert found.claimed is not None and bool(found.claimed.all())
        assert found.label_counts is not None and found.label_counts.tolist() == [
            int(c == label) for c in range(4)
        ]


def test_every_layers_input_is_that_of_the_forward_pass() -> None:
    model, data = conv_chain(nn.Tanh()), example(IMAGES)
    exchange = seen(model, data)
    chain = trace_chain(model, IMAGES)
    known = Knowledge(input=IMAGES)
    found = RecursiveInversion().descend(model, chain, one_step_gradient(exchange, known), precision=1e-12)
    assert [link.name for link, _ in found.solved] == ["2", "0"]
    for link, step in found.solved:
        truth = model[: int(link.name)](data.inputs).detach()
        torch.testing.assert_close(step.values, truth, rtol=1e-6, atol=1e-6)
        assert step.residual < 1e-8 and round(step.rank) == truth.numel()


def test_batch_norm_in_eval_mode_is_a_step_and_in_train_mode_a_reason() -> None:
    model, data = conv_chain(nn.Sigmoid(), norm=True), example(IMAGES)
    assert psnr(run(seen(model, data), IMAGES).values, data.inputs) > 60
    train = LocalTraining(batch_norm="train")
    with pytest.raises(NotApplicable, match=r"'1' \(BatchNorm2d\) in train mode"):
        recursive_inversion().check(model, Knowledge(input=IMAGES, local=train))


def test_float32_updates_and_normalised_inputs() -> None:
    spec = dataclasses.replace(IMAGES, mean=(0.4, 0.5), std=(0.2, 0.3))
    raw = example(spec, dtype=torch.float32)
    model = conv_chain(nn.Tanh(), dtype=torch.float32)
    found = run(seen(model, Batch(spec.to_model(raw.inputs), raw.labels)), spec)
    assert found.values.dtype == torch.float32 and not found.model_units
    assert psnr(found.values, raw.inputs) > 60
    assert float(found.values.min()) >= -1e-6 and float(found.values.max()) <= 1 + 1e-6


@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("granted", [True, False])
def test_one_local_step_of_fedavg_is_a_gradient(decay: float, granted: bool) -> None:
    local = LocalTraining(algorithm="fedavg", lr=0.2, momentum=0.9, weight_decay=decay)
    model, data = conv_chain(nn.Tanh()), example(IMAGES)
    exchange = seen(model, data, local)
    assert exchange.update.kind is UpdateKind.DELTA
    found = run(exchange, IMAGES, local if granted else None)
    right = granted or decay == 0.0  # weight decay that the server does not know of spoils the equations
    assert (psnr(found.values, data.inputs) > 60) is right
    assert found.claimed is not None and bool(found.claimed.all()) is right


def test_several_local_steps_are_refused() -> None:
    local = LocalTraining(algorithm="fedavg", epochs=3)
    with pytest.raises(NotApplicable, match="sums 3 local steps"):
        run(seen(conv_chain(nn.Tanh()), example(IMAGES), local), IMAGES, local)


def with_tensors(exchange: Exchange, change: object) -> Exchange:
    tensors = {name: change(t) for name, t in exchange.update.tensors.items()}  # type: ignore[operator]
    return dataclasses.replace(exchange, update=dataclasses.replace(exchange.update, tensors=tensors))


def test_clipping_changes_nothing_and_noise_is_not_claimed() -> None:
    data = example(IMAGES)
    exchange = seen(conv_chain(nn.Tanh()), data)
    clipped = run(with_tensors(exchange, lambda t: 1e-3 * t), IMAGES)
    assert psnr(clipped.values, data.inputs) > 60
    assert clipped.claimed is not None and bool(clipped.claimed.all())
    torch.manual_seed(0)
    noisy = run(with_tensors(exchange, lambda t: t + 0.01 * torch.randn_like(t)), IMAGES)
    assert noisy.claimed is not None and not noisy.claimed.any()
    assert noisy.confidence is not None and float(noisy.confidence[0]) < 0.1
    assert "does not explain the update" in noisy.notes[-1]


def test_a_layer_that_loses_information_is_named_and_nothing_is_claimed() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(  # one channel at stride 2: 25 + 2 * 9 equations, one repeated, for 200 pixels
        nn.Conv2d(2, 1, 3, padding=1, stride=2),
        nn.Tanh(),
        nn.Conv2d(1, 6, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(150, 4),
    ).double()
    data = example(IMAGES)
    found = run(seen(model, data), IMAGES)
    assert "Layer '0': 200 unknowns, 43 equations, numerical rank 42" in found.notes[1]
    assert "loses information: 158 of" in found.notes[1] and "loses" not in found.notes[0]
    assert psnr(found.values, data.inputs) < 30
    assert found.claimed is not None and not found.claimed.any()


def test_features_that_no_later_layer_sees_do_not_matter() -> None:
    """The second convolution steps over three quarters of the first one's outputs; they are not needed."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 24, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(24, 24, 1, stride=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(600, 4),
    ).double()
    data = example(IMAGES)
    found = run(seen(model, data), IMAGES)
    assert "Layer '2': 2400 unknowns" in found.notes[0] and "loses information: 1800 of" in found.notes[0]
    assert psnr(found.values, data.inputs) > 60
    assert found.claimed is not None and bool(found.claimed.all())


def test_the_number_of_examples() -> None:
    model, data = conv_chain(nn.Tanh()), example(IMAGES)
    two = Batch.concat([data, example(IMAGES, 1, seed=9)])
    with pytest.raises(NotApplicable, match="made from 2 examples"):
        run(seen(model, two), IMAGES)

    def uncounted(exchange: Exchange) -> Exchange:
        return dataclasses.replace(exchange, update=dataclasses.replace(exchange.update, num_examples=None))

    with pytest.raises(NotApplicable, match="does not fit a single example"):
        run(uncounted(seen(model, two)), IMAGES)
    found = run(uncounted(seen(model, data)), IMAGES)
    assert psnr(found.values, data.inputs) > 60
    # The mean of two near copies solves the same equations: what nobody counted is read, and not claimed.
    assert found.claimed is not None and not bool(found.claimed[0])
    assert "not claimed" in found.notes[-1]


def test_a_silent_or_frozen_last_layer_is_a_reason() -> None:
    model = conv_chain(nn.Tanh())
    silent = with_tensors(seen(model, example(IMAGES)), torch.zeros_like)
    with pytest.raises(NotApplicable, match="certain of the example"):
        run(silent, IMAGES)
    model[-1].requires_grad_(False)
    with pytest.raises(NotApplicable, match="'5' is frozen"):
        run(seen(model, example(IMAGES)), IMAGES)


def test_a_single_logit_for_two_classes() -> None:
    spec = dataclasses.replace(IMAGES, num_classes=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(800, 1)).double()
    for label in (0, 1):
        data = example(spec, label)
        known = Knowledge(input=spec, loss="binary_cross_entropy")
        found = recursive_inversion().run([seen(model, data)], known)
        assert psnr(found.values, data.inputs) > 60
        assert found.label_counts is not None and int(found.label_counts.argmax()) == label


@pytest.mark.parametrize("bad", [{"tolerance": 0.0}, {"max_iterations": 0}])
def test_impossible_settings(bad: dict[str, float]) -> None:
    with pytest.raises(SpecError, match="recursive_inversion cannot solve"):
        recursive_inversion(**bad)  # type: ignore[arg-type]


@pytest.mark.skipif(
    not (Path(os.environ.get("SEEPAGE_DATA", "")) / "cifar10").is_dir(),
    reason="SEEPAGE_DATA names no folder with cifar10",
)
def test_real_pictures_through_the_lenet_of_zhu_et_al() -> None:
    from seepage.data import load_data
    from seepage.models import MODELS

    data = load_data("cifar10")
    torch.manual_seed(0)
    model = MODELS["lenet_zhu"].build(data.spec)
    picture = data.batch(torch.tensor([0]))
    found = run(seen(model, picture), data.spec)
    assert psnr(found.values, picture.inputs) > 45
    assert found.claimed is not None and bool(found.claimed.all())
