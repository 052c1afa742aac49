"""DP-SGD: per-example gradients against a loop, and each of its parts against a computation by hand."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn.utils import prune

from seepage.core.errors import ModelError
from seepage.core.types import Batch, Broadcast, LocalTraining, Update, UpdateKind
from seepage.defenses import Deployment, per_example
from seepage.defenses.dense_clipping import is_plain_dense
from seepage.defenses.dp_sgd import dp_sgd
from seepage.defenses.per_example import clipped_sum, loop_gradients, per_example_gradients
from seepage.protocol import client, local_update


def conv_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 16, 4))


class Recurrent(nn.Module):
    """vmap has no rule for an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(6, 5, batch_first=True)
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x.squeeze(1))[0][:, -1])


class Branching(nn.Module):
    """Control flow that depends on a value."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(36, 4), nn.Linear(36, 4)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return self.large(flat) if flat.mean().item() > 0.5 else self.small(flat)


class Partial(nn.Module):
    """One parameter that the loss never reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(36, 1), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x.flatten(1))


MODELS = {"conv": conv_net, "recurrent": Recurrent, "branching": Branching, "partial": Partial}


def setting(name: str, n: int = 5) -> tuple[Broadcast, Batch]:
    torch.manual_seed(3)
    model = MODELS[name]().double()
    for module in model.modules():  # running statistics that are not the identity
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)
    classes = 2 if name == "partial" else 4
    return Broadcast(model), Batch(torch.rand(n, 1, 6, 6, dtype=torch.float64), torch.randint(classes, (n,)))


def by_hand(received: Broadcast, batch: Batch) -> list[dict[str, Tensor]]:
    """Each example's gradient by its own backward pass on an eval-mode model."""
    rows = []
    for i in range(len(batch)):
        model = received.model.eval()
        model.zero_grad()
        logits = model(batch.inputs[i : i + 1])
        label = batch.labels[i : i + 1]
        if logits.shape[1] == 1:
            loss = nn.functional.binary_cross_entropy_with_logits(logits[:, 0], label.double())
        else:
            loss = nn.functional.cross_entropy(logits, label)
        loss.backward()
        rows.append(
            {
                k: torch.zeros_like(p) if p.grad is None else p.grad.clone()
                for k, p in model.named_parameters()
            }
        )
    return rows


def norm_of(tensors: dict[str, Tensor]) -> float:
    return torch.cat([t.flatten() for t in tensors.values()]).norm().item()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", MODELS)
def test_per_example_gradients_against_a_loop(name) -> None:
    received, batch = setting(name)
    expected = by_hand(received, batch)
    model = received.model.eval()
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    found = per_example_gradients(model, parameters, buffers, batch, "auto")
    for key in parameters:
        assert torch.allclose(found[key], torch.stack([row[key] for row in expected]), atol=1e-12)


def test_vmap_is_used_where_it_can_be(monkeypatch) -> None:
    def unexpected(*_: object) -> None:
        raise AssertionError("looped")

    monkeypatch.setattr(per_example, "loop_gradients", unexpected)
    received, batch = setting("conv")
    model = received.model.eval()
    per_example_gradients(model, dict(model.named_parameters()), dict(model.named_buffers()), batch, "auto")


def dense_net(*, bias: bool = True) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(36, 7, bias=bias), nn.ReLU(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 4)
    )


@pytest.mark.parametrize("loss", ["auto", "cross_entropy_sum"])
@pytest.mark.parametrize("clip", [1e-3, 0.4, 1e6])
@pytest.mark.parametrize("bias", [True, False])
def test_dense_networks_are_clipped_without_forming_the_gradients(
    monkeypatch: pytest.MonkeyPatch, bias: bool, clip: float, loss: str
) -> None:
    torch.manual_seed(5)
    model = dense_net(bias=bias).double()
    batch = Batch(torch.randn(6, 1, 6, 6, dtype=torch.float64), torch.randint(4, (6,)))
    batch.inputs[2] = 0.0
    parameters = dict(model.named_parameters())
    assert is_plain_dense(model)
    found = clipped_sum(model, parameters, {}, batch, loss, clip=clip)
    monkeypatch.setattr(per_example, "is_plain_dense", lambda _: False)
    expected = clipped_sum(model, parameters, {}, batch, loss, clip=clip)
    assert all(torch.allclose(found[name], expected[name], rtol=1e-12, atol=1e-14) for name in parameters)
    assert not any(t.requires_grad for t in found.values())


def shared_weight_net() -> nn.Sequential:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 36), nn.ReLU(), nn.Linear(36, 36))
    model[3].weight = model[1].weight
    return model


@pytest.mark.parametrize("change", ["pruned", "weight norm", "shared"])
def test_weights_that_are_computed_or_shared_are_clipped_by_their_own_gradients(change: str) -> None:
    torch.manual_seed(8)
    model = (shared_weight_net() if change == "shared" else dense_net()).double()
    if change == "pruned":
        prune.l1_unstructured(model[1], "weight", amount=0.5)
    if change == "weight norm":
        nn.utils.weight_norm(model[1])
    batch = Batch(torch.randn(3, 1, 6, 6, dtype=torch.float64), torch.tensor([0, 1, 2]))
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    found = clipped_sum(model, parameters, buffers, batch, "auto", clip=0.3)
    expected = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for i in range(3):
        own = loop_gradients(model, parameters, buffers, batch.select(slice(i, i + 1)), "auto")
        norm = torch.cat([g.flatten() for g in own.values()]).norm()
        for name, gradient in own.items():
            expected[name] += gradient[0] * min(1.0, 0.3 / float(norm))
    assert all(torch.allclose(found[name], expected[name]) for name in parameters)


def test_frozen_layers_do_not_count_towards_the_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(6)
    model = dense_net().double()
    batch = Batch(torch.randn(3, 1, 6, 6, dtype=torch.float64), torch.tensor([0, 1, 2]))
    parameters = {name: p for name, p in model.named_parameters() if not name.startswith("1.")}
    fixed = {name: p.detach() for name, p in model.named_parameters() if name.startswith("1.")}
    found = clipped_sum(model, parameters, fixed, batch, "auto", clip=0.3)
    monkeypatch.setattr(per_example, "is_plain_dense", lambda _: False)
    expected = clipped_sum(model, parameters, fixed, batch, "auto", clip=0.3)
    assert all(torch.allclose(found[name], expected[name], rtol=1e-12) for name in parameters)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 2)),  # rows of a sequence would be summed
        nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3)),
        nn.Sequential(nn.Flatten(0), nn.Linear(4, 3)),
        nn.Sequential(nn.Flatten(), *[nn.Linear(4, 4)] * 2),
        nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(4, 4))),
        conv_net(),
        nn.Sequential(),
    ],
)
def test_no_other_model_takes_the_short_cut(model: nn.Module) -> None:
    assert not is_plain_dense(model)


@pytest.mark.parametrize("at_once", [1, 3, 10**9])
@pytest.mark.parametrize("clip", [1e-3, 1.0, 1e6])
def test_clipped_sum_against_clipping_by_hand(monkeypatch, clip, at_once) -> None:
    received, batch = setting("conv", n=7)
    expected: dict[str, Tensor] = {}
    norms = []
    for row in by_hand(received, batch):
        norms.append(norm_of(row))
        factor = 1 / max(1.0, norms[-1] / clip)  # Appendix A
        for key, value in row.items():
            expected[key] = expected.get(key, 0) + value * factor
    model = received.model.eval()
    size = sum(p.numel() for p in model.parameters())
    monkeypatch.setattr(per_example, "MOST_NUMBERS_AT_ONCE", at_once * size)
    found = clipped_sum(
        model, dict(model.named_parameters()), dict(model.named_buffers()), batch, "auto", clip=clip
    )
    assert all(torch.allclose(found[k], expected[k], atol=1e-12) for k in expected)
    assert norm_of(found) <= clip * len(batch) * (1 + 1e-12)


TRAININGS = [
    LocalTraining(),
    LocalTraining(loss="cross_entropy_sum"),
    LocalTraining(algorithm="fedavg", batch_size=2, epochs=2, lr=0.3, momentum=0.9, weight_decay=0.01),
    LocalTraining(algorithm="fedavg", batch_size=3, steps=3, epochs=5, shuffle_seed=4),
]


@pytest.mark.parametrize("training", TRAININGS)
def test_without_noise_and_with_room_it_is_plain_training(training) -> None:
    received, batch = setting("conv")
    plain = local_update(received, batch, training)
    defense = dp_sgd(clip=1e9, sigma=0.0, deployment=Deployment(training=training))
    sent = client(training, [defense])(received, batch)
    assert sent.kind is plain.kind
    assert sent.num_examples == plain.num_examples == 5
    assert all(torch.allclose(sent.tensors[k], plain.tensors[k], atol=1e-12) for k in plain.tensors)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_fallback_models_also_train_plainly() -> None:
    received, batch = setting("recurrent")
    plain = local_update(received, batch, LocalTraining())
    sent = client(LocalTraining(), [dp_sgd(clip=1e9, sigma=0.0)])(received, batch)
    assert all(torch.allclose(sent.tensors[k], plain.tensors[k], atol=1e-12) for k in plain.tensors)


@pytest.mark.parametrize(("loss", "parts"), [("auto", 8), ("cross_entropy_sum", 1)])
def test_the_noise_is_sigma_clip_over_the_batch(loss, parts) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 600), nn.ReLU(), nn.Linear(600, 4)).double()
    received = Broadcast(model)
    batch = Batch(torch.rand(8, 1, 6, 6, dtype=torch.float64), torch.arange(8) % 4)
    around = Deployment(training=LocalTraining(loss=loss))

    def sent(sigma: float, seed: int = 0) -> Tensor:
        defense = dp_sgd(clip=0.5, sigma=sigma, seed=seed, deployment=around)
        update = client(around.training, [defense])(received, batch)
        return torch.cat([t.flatten() for t in update.tensors.values()])

    noise = (sent(2.0) - sent(0.0)) * parts / (2.0 * 0.5)
    n = len(noise)
    low, high = stats.chi2(n).ppf([0.0005, 0.9995])
    assert low < noise.square().sum().item() < high
    assert stats.kstest(noise.numpy(), "norm").pvalue > 0.001
    assert torch.equal(sent(2.0, seed=1), sent(2.0, seed=1))
    assert not torch.equal(sent(2.0, seed=1), sent(2.0, seed=2))


def test_every_local_step_of_fedavg_is_noised() -> None:
    """Three steps of an lr on a gradient of zero: the delta is a random walk of three noises."""
    model = nn.Linear(400, 50).double()
    nn.init.zeros_(model.weight)
    inputs = torch.zeros(6, 400, dtype=torch.float64)
    training = LocalTraining(algorithm="fedavg", batch_size=2, lr=0.1)
    defense = dp_sgd(clip=1.0, sigma=4.0, deployment=Deployment(training=training))
    sent = client(training, [defense])(Broadcast(model), Batch(inputs, torch.arange(6)))
    walk = sent.tensors["weight"].flatten() / (0.1 * 4.0 / 2)
    low, high = stats.chi2(len(walk)).ppf([0.0005, 0.9995])
    assert low < (walk.square().sum() / 3).item() < high


def test_the_received_model_is_left_alone() -> None:
    received, batch = setting("conv")
    before = {k: v.clone() for k, v in received.model.state_dict().items()}
    received.model.train()
    client(LocalTraining(), [dp_sgd()])(received, batch)
    assert all(torch.equal(v, before[k]) for k, v in received.model.state_dict().items())
    assert received.model.training
    assert all(p.grad is None for p in received.model.parameters())


def test_batch_statistics_are_refused() -> None:
    received, batch = setting("conv")
    around = Deployment(training=LocalTraining(batch_norm="train"))
    with pytest.raises(ModelError, match=r"BatchNorm mixes .* batch_norm = 'eval'"):
        client(around.training, [dp_sgd(deployment=around)])(received, batch)
    plain = Broadcast(nn.Sequential(nn.Flatten(), nn.Linear(36, 4)).double())
    sent = client(around.training, [dp_sgd(deployment=around)])(plain, batch)
    assert sent.kind is UpdateKind.GRADIENT


def test_defenses_around_it_see_its_update() -> None:
    received, batch = setting("conv")

    def doubled(broadcast: Broadcast, batch: Batch, next_step) -> Update:
        update = next_step(broadcast, batch)
        return Update(kind=update.kind, tensors={k: 2 * t for k, t in update.tensors.items()})

    alone = client(LocalTraining(), [dp_sgd(seed=3)])(received, batch)
    around = client(LocalTraining(), [doubled, dp_sgd(seed=3)])(received, batch)
    assert all(torch.equal(around.tensors[k], 2 * alone.tensors[k]) for k in alone.tensors)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"clip": 0.0}, "clip must be positive"),
        ({"clip": math.nan}, "clip must be positive"),
        ({"clip": math.inf}, "clip must be finite"),
        ({"sigma": -0.1}, "sigma must be zero or positive"),
        ({"sigma": math.inf}, "sigma must be zero or positive and finite"),
    ],
)
def test_dp_sgd_refuses(settings, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        dp_sgd(**settings)
