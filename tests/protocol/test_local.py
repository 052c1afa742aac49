"""Local training against plain torch: per-example loops, torch.optim.SGD on a deep copy."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from seepage.core.errors import DataError, ModelError, SpecError
from seepage.core.types import Batch, Broadcast, LocalTraining, UpdateKind
from seepage.protocol import LOSSES, client, local_batches, local_update, loss_name, trainable


def mlp(*, seed: int = 0, outputs: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(32, 7), nn.Tanh(), nn.Linear(7, outputs))


def conv_net(*, seed: int = 0) -> nn.Module:
    """Two BatchNorms with statistics and affine parameters away from their defaults."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4), nn.BatchNorm1d(4)
    )
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.running_mean.uniform_(-1, 1)
                module.running_var.uniform_(0.5, 2)
                module.weight.uniform_(0.5, 2)
    return model


def examples(n: int, *, classes: int = 3, seed: int = 1, dtype: torch.dtype = torch.float32) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, 2, 4, 4, generator=generator, dtype=dtype)
    return Batch(inputs, torch.randint(classes, (n,), generator=generator))


def mean_of_example_gradients(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    model = copy.deepcopy(model).eval()
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for x, y in zip(batch.inputs, batch.labels, strict=True):
        model.zero_grad()
        F.cross_entropy(model(x[None]), y[None]).backward()
        for name, p in model.named_parameters():
            total[name] += p.grad / len(batch)
    return total


@pytest.mark.parametrize("build", [mlp, conv_net])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-14)])
def test_fedsgd_is_the_mean_of_the_example_gradients(build, dtype, tolerance) -> None:
    model, batch = build().to(dtype), examples(5, dtype=dtype)
    update = local_update(Broadcast(model), batch, LocalTraining())
    expected = mean_of_example_gradients(model, batch)
    assert update.kind is UpdateKind.GRADIENT
    assert update.num_examples == 5
    assert update.buffers is None
    assert list(update.tensors) == list(expected)
    for name, gradient in update.tensors.items():
        assert gradient.dtype is dtype
        assert not gradient.requires_grad
        assert (gradient - expected[name]).abs().max() < tolerance, name
    assert max(g.abs().max() for g in expected.values()) > 0.01  # the comparison is not one of zeros


def test_train_mode_batch_norm_equals_plain_training_and_moves_the_buffers() -> None:
    model, batch = conv_net().double(), examples(6, dtype=torch.float64)
    update = local_update(Broadcast(model), batch, LocalTraining(batch_norm="train", send_buffers=True))
    plain = copy.deepcopy(model).train()
    F.cross_entropy(plain(batch.inputs), batch.labels).backward()
    for name, p in plain.named_parameters():
        assert torch.equal(update.tensors[name], p.grad), name
    assert set(update.buffers) == {name for name, _ in plain.named_buffers()}
    for name, buffer in plain.named_buffers():
        assert torch.equal(update.buffers[name], buffer), name
        assert not torch.equal(buffer, dict(model.named_buffers())[name]), name
    # one step of the exponential average, by hand
    seen = plain[0](batch.inputs).mean(dim=(0, 2, 3))
    assert torch.allclose(update.buffers["1.running_mean"], 0.9 * model[1].running_mean + 0.1 * seen)
    # and it is not the eval-mode gradient
    other = local_update(Broadcast(model), batch, LocalTraining())
    assert not torch.allclose(other.tensors["0.weight"], update.tensors["0.weight"])


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
@pytest.mark.parametrize("batch_norm", ["eval", "train"])
@pytest.mark.parametrize("buffers", [True, False])
def test_the_received_model_is_left_bit_for_bit(algorithm, batch_norm, buffers) -> None:
    model = conv_net().train()
    model[1].eval()  # a mixed mode must come back as it was
    state = {name: t.clone() for name, t in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    training = LocalTraining(
        algorithm=algorithm, batch_norm=batch_norm, batch_size=2, epochs=2, send_buffers=buffers
    )
    update = local_update(Broadcast(model), examples(4), training)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert (update.buffers is not None) == buffers
    if buffers:
        moved = not torch.equal(update.buffers["1.running_mean"], state["1.running_mean"])
        assert moved == (batch_norm == "train")
        assert update.buffers["1.num_batches_tracked"] == (
            0 if batch_norm == "eval" else 1 if algorithm == "fedsgd" else 4
        )


def test_modes_come_back_after_an_error() -> None:
    model = conv_net().eval()
    with pytest.raises(DataError):
        local_update(Broadcast(model), examples(1), LocalTraining(batch_norm="train"))
    assert not any(module.training for module in model.modules())


def test_every_step_of_mixed_precision_computes_with_the_weights_of_that_step() -> None:
    """As with a `with torch.autocast(...)` around each step: around all of them, narrow copies go stale."""
    model, batch = (
        nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)),
        Batch(torch.rand(4, 6), torch.arange(4) % 3),
    )
    training = LocalTraining(algorithm="fedavg", steps=3, epochs=3, lr=0.5, mixed_precision=True)
    update, trained = local_update(Broadcast(model), batch, training), copy.deepcopy(model)
    optimiser = torch.optim.SGD(trained.parameters(), lr=0.5)
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(trained(batch.inputs), batch.labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for (name, new), old in zip(trained.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(update.tensors[name], new.detach() - old.detach()), name


def torch_training(model: nn.Module, batch: Batch, training: LocalTraining) -> nn.Module:
    """FedAvg's ClientUpdate written with nothing but torch."""
    trained = copy.deepcopy(model)
    trained.train(training.batch_norm == "train")
    optimiser = torch.optim.SGD(
        [p for p in trained.parameters() if p.requires_grad],
        lr=training.lr,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
    )
    n, size, done = len(batch), training.batch_size or len(batch), 0
    generator = torch.Generator()
    if training.shuffle_seed is not None:
        generator.manual_seed(training.shuffle_seed)
    for _ in range(training.epochs):
        shuffled = training.shuffle_seed is not None
        order = torch.randperm(n, generator=generator) if shuffled else torch.arange(n)
        for start in range(0, n, size):
            if training.steps is not None and done == training.steps:
                return trained
            chosen = order[start : start + size]
            optimiser.zero_grad()
            F.cross_entropy(trained(batch.inputs[chosen]), batch.labels[chosen]).backward()
            optimiser.step()
            done += 1
    return trained


FEDAVG = [
    {"batch_size": 2, "lr": 0.3},
    {"batch_size": 3, "epochs": 3, "momentum": 0.9},  # the last mini-batch is short
    {"batch_size": 3, "epochs": 2, "weight_decay": 0.1, "shuffle_seed": 5},
    {"epochs": 4, "lr": 0.05, "momentum": 0.5, "weight_decay": 0.01},
    {"batch_size": 2, "epochs": 3, "steps": 5, "shuffle_seed": 0},
    {"batch_size": 100, "epochs": 2},
]


@pytest.mark.parametrize("build", [mlp, conv_net])
@pytest.mark.parametrize("batch_norm", ["eval", "train"])
@pytest.mark.parametrize("options", FEDAVG, ids=str)
def test_fedavg_delta_equals_plain_torch_training(build, batch_norm, options) -> None:
    training = LocalTraining(algorithm="fedavg", batch_norm=batch_norm, send_buffers=True, **options)
    model, batch = build(), examples(8 if options.get("batch_size") == 3 else 7)
    if batch_norm == "train" and options.get("batch_size") == 2:
        batch = examples(8)  # no mini-batch of one example
    update = local_update(Broadcast(model), batch, training)
    expected = torch_training(model, batch, training)
    assert update.kind is UpdateKind.DELTA
    before = dict(model.named_parameters())
    for name, p in expected.named_parameters():
        assert torch.equal(update.tensors[name], p.detach() - before[name].detach()), name
    assert max(t.abs().max() for t in update.tensors.values()) > 0.01
    for name, buffer in expected.named_buffers():
        assert torch.equal(update.buffers[name], buffer), name


def test_shuffling_changes_the_result_and_epochs_are_reshuffled() -> None:
    training = LocalTraining(algorithm="fedavg", batch_size=4, epochs=2, shuffle_seed=3)
    orders = torch.cat(local_batches(16, training)).reshape(2, 16)
    assert not torch.equal(orders[0], torch.arange(16))
    assert not torch.equal(orders[0], orders[1])


@pytest.mark.parametrize("build", [mlp, conv_net])
def test_one_local_step_is_minus_lr_times_the_gradient(build) -> None:
    model, batch = build().double(), examples(6, dtype=torch.float64)
    gradient = local_update(Broadcast(model), batch, LocalTraining())
    delta = local_update(Broadcast(model), batch, LocalTraining(algorithm="fedavg", lr=0.25))
    for name, g in gradient.tensors.items():
        assert torch.allclose(delta.tensors[name], -0.25 * g, rtol=0, atol=1e-15), name


sizes = st.integers(1, 40)


@settings(max_examples=150, deadline=None)
@given(
    n=sizes,
    batch_size=st.none() | sizes,
    epochs=st.integers(1, 4),
    steps=st.none() | st.integers(1, 30),
    seed=st.none() | st.integers(0, 99),
)
def test_local_batches_hold_every_example_once_an_epoch(n, batch_size, epochs, steps, seed) -> None:
    training = LocalTraining(
        algorithm="fedavg", batch_size=batch_size, epochs=epochs, steps=steps, shuffle_seed=seed
    )
    batches = [b.tolist() for b in local_batches(n, training)]
    per_epoch = math.ceil(n / (batch_size or n))
    wanted = per_epoch * epochs if steps is None else min(steps, per_epoch * epochs)
    assert training.num_steps(n) == len(batches) == wanted
    for start in range(0, wanted, per_epoch):
        epoch = batches[start : start + per_epoch]
        flat = [i for b in epoch for i in b]
        assert len(set(flat)) == len(flat)
        if len(epoch) == per_epoch:
            assert sorted(flat) == list(range(n))
        assert all(len(b) == (batch_size or n) for b in epoch[: per_epoch - 1])
    assert batches == [b.tolist() for b in local_batches(n, training)]


def test_fedsgd_is_one_step_on_everything() -> None:
    training = LocalTraining(batch_size=2, epochs=3)
    assert training.num_steps(9) == 1
    assert [b.tolist() for b in local_batches(4, training)] == [[0, 1, 2, 3]]


class Branching(nn.Module):
    """One parameter that the loss never reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_an_unused_parameter_is_sent_as_zeros_even_under_weight_decay(algorithm) -> None:
    # torch.optim.SGD skips a parameter without a gradient, weight decay included.
    torch.manual_seed(0)
    model, batch = Branching(), Batch(torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1]))
    training = LocalTraining(algorithm=algorithm, weight_decay=0.5, momentum=0.9, epochs=3)
    update = local_update(Broadcast(model), batch, training)
    assert torch.equal(update.tensors["unused.weight"], torch.zeros(3, 4))
    assert torch.equal(update.tensors["unused.bias"], torch.zeros(3))
    assert update.tensors["used.weight"].abs().max() > 0
    if algorithm == "fedavg":
        expected = torch_training(model, batch, training)
        assert torch.equal(update.tensors["used.weight"], (expected.used.weight - model.used.weight).detach())


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_frozen_parameters_are_not_sent(algorithm) -> None:
    model = mlp()
    full = local_update(Broadcast(model), examples(4), LocalTraining(algorithm=algorithm))
    model[1].weight.requires_grad_(False)
    update = local_update(Broadcast(model), examples(4), LocalTraining(algorithm=algorithm))
    assert set(full.tensors) - set(update.tensors) == {"1.weight"}
    assert list(trainable(model)) == list(update.tensors) == ["1.bias", "3.weight", "3.bias"]
    assert torch.equal(full.tensors["3.weight"], update.tensors["3.weight"])


def test_tied_parameters_get_the_summed_gradient_once() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    batch = Batch(torch.randn(4, 3), torch.tensor([0, 1, 2, 0]))
    update = local_update(Broadcast(model), batch, LocalTraining())
    plain = copy.deepcopy(model)
    F.cross_entropy(plain(batch.inputs), batch.labels).backward()
    assert list(update.tensors) == ["0.weight", "0.bias", "2.bias"]
    assert torch.allclose(update.tensors["0.weight"], plain[0].weight.grad, rtol=0, atol=1e-7)


def test_sentences_for_what_a_client_cannot_do() -> None:
    with pytest.raises(DataError) as one:
        flat = nn.Sequential(nn.Flatten(), nn.Linear(32, 3), nn.BatchNorm1d(3))
        local_update(Broadcast(flat), examples(1), LocalTraining(batch_norm="train"))
    assert str(one.value) == (
        "BatchNorm in train mode cannot work on a batch of one example: "
        "use a larger batch, or batch_norm = 'eval'."
    )
    with pytest.raises(DataError, match="a client has no examples"):
        local_update(Broadcast(mlp()), examples(2).select(slice(0, 0)), LocalTraining())
    frozen = mlp()
    frozen.requires_grad_(False)
    with pytest.raises(DataError, match="no trainable parameter"):
        local_update(Broadcast(frozen), examples(2), LocalTraining())
    with pytest.raises(ModelError, match="does not fit a model with 3 output"):
        local_update(Broadcast(mlp()), examples(2), LocalTraining(loss="binary_cross_entropy"))
    with pytest.raises(SpecError, match="did you mean 'cross_entropy'"):
        loss_name("crossentropy", 3)


def test_an_error_of_the_model_itself_is_not_renamed() -> None:
    class Odd(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            raise ValueError("something else")

    with pytest.raises(ValueError, match="something else"):
        local_update(Broadcast(Odd(3, 2)), Batch(torch.rand(1, 3), torch.tensor([0])), LocalTraining())


def test_losses_against_their_formulas() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 3, 3, 0])
    by_hand = -logits.exp().div(logits.exp().sum(1, keepdim=True)).log()[torch.arange(6), labels]
    assert torch.allclose(LOSSES["cross_entropy"](logits, labels), by_hand.mean())
    assert torch.allclose(LOSSES["cross_entropy_sum"](logits, labels), by_hand.sum())
    single, binary = logits[:, :1], labels % 2
    p = 1 / (1 + (-single[:, 0]).exp())
    expected = -torch.where(binary == 1, p.log(), (1 - p).log()).mean()
    assert torch.allclose(LOSSES["binary_cross_entropy"](single, binary), expected)
    assert LOSSES["cross_entropy"](torch.tensor([[1e4, -1e4]]), torch.tensor([1])).isfinite()


def test_summed_loss_scales_the_gradient_by_the_batch_size() -> None:
    model, batch = mlp().double(), examples(7, dtype=torch.float64)
    mean = local_update(Broadcast(model), batch, LocalTraining(loss="cross_entropy"))
    total = local_update(Broadcast(model), batch, LocalTraining(loss="cross_entropy_sum"))
    for name, g in mean.tensors.items():
        assert torch.allclose(total.tensors[name], 7 * g, rtol=1e-12, atol=1e-14)


def test_binary_gradient_of_the_last_bias_has_its_closed_form() -> None:
    model = mlp(outputs=1).double()
    batch = examples(5, classes=2, dtype=torch.float64)
    update = local_update(Broadcast(model), batch, LocalTraining())
    residual = torch.sigmoid(model(batch.inputs)).squeeze(1) - batch.labels  # d BCE / d logit
    assert torch.allclose(update.tensors["3.bias"], residual.mean().detach()[None])


def test_client_without_defenses_is_local_update() -> None:
    training = LocalTraining(algorithm="fedavg", batch_size=2)
    sent = client(training)(Broadcast(mlp()), examples(4))
    direct = local_update(Broadcast(mlp()), examples(4), training)
    assert all(torch.equal(sent.tensors[k], direct.tensors[k]) for k in direct.tensors)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adam", "lr": 0.01},
        {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.1},
        {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1, "accumulation": 2},
        {"optimizer": "sgd", "lr": 0.3, "momentum": 0.9, "clip_norm": 0.05},
        {"optimizer": "sgd", "lr": 0.3, "accumulation": 3},
    ],
    ids=str,
)
def test_other_optimisers_equal_torch_training(options, schedule) -> None:
    training = LocalTraining(algorithm="fedavg", batch_size=2, epochs=3, schedule=schedule, **options)
    model, batch = mlp(), examples(6)  # nine mini-batches
    sent = local_update(Broadcast(model), batch, training)
    trained = copy.deepcopy(model).eval()
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    known = {k: v for k, v in options.items() if k in ("lr", "momentum", "weight_decay")}
    optimiser = kinds[training.optimizer](trained.parameters(), **{"weight_decay": 0.0, **known})
    steps = math.ceil(9 / training.accumulation)
    rates = {
        "constant": [1.0] * steps,
        "linear": [1 - t / steps for t in range(steps)],
        "cosine": [(1 + math.cos(math.pi * t / steps)) / 2 for t in range(steps)],
    }[schedule]
    parts = [slice(2 * (i % 3), 2 * (i % 3) + 2) for i in range(9)]
    for step in range(steps):
        group = parts[step * training.accumulation : (step + 1) * training.accumulation]
        for one in optimiser.param_groups:
            one["lr"] = rates[step] * training.lr
        optimiser.zero_grad()
        for part in group:
            loss = F.cross_entropy(trained(batch.inputs[part]), batch.labels[part])
            (loss / len(group)).backward()
        if training.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(trained.parameters(), training.clip_norm)
        optimiser.step()
    for (name, new), old in zip(trained.named_parameters(), model.parameters(), strict=True):
        assert torch.allclose(sent.tensors[name], new.detach() - old.detach(), atol=1e-6), name
