"""The objective without second derivatives against double backprop of the same loss, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from seepage.attacks.inversion.distances import cosine, euclidean, l1_l2
from seepage.attacks.inversion.objective import Candidates
from seepage.attacks.inversion.problem import Problem, pose_problem
from seepage.attacks.inversion.single_backprop import single_backprop_matching
from seepage.core.types import Batch, Broadcast, Exchange, InputSpec, Knowledge, LocalTraining, Modality
from seepage.protocol import local_update, training_mode

SPEC = InputSpec(modality=Modality.IMAGE, shape=(2, 8, 8), num_classes=4)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 5, 3, padding=1)
        self.second = nn.Conv2d(5, 5, 3, padding=1)
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x))
        y = y + torch.relu(self.second(y))
        return self.head(y.mean(dim=(2, 3)))


def norm(channels: int) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(channels)
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.5, 2.0)
    return layer


NETWORKS = {
    "dense": lambda: nn.Sequential(nn.Flatten(), nn.Linear(128, 20), nn.ReLU(), nn.Linear(20, 4)),
    "strided": lambda: nn.Sequential(
        nn.Conv2d(2, 6, 3, stride=2, padding=1), nn.LeakyReLU(), nn.Flatten(), nn.Linear(96, 4)
    ),
    "pooled batch norm": lambda: nn.Sequential(
        nn.Conv2d(2, 6, 3, padding="same", bias=False),
        norm(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 6, 3, dilation=2, padding=2, groups=2),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(24, 4),
    ),
    "residual": Residual,
    "in place": lambda: nn.Sequential(
        nn.Conv2d(2, 6, 3), norm(6), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(216, 4)
    ),
    # both tile sizes: 400 outputs, then 100
    "wide": lambda: nn.Sequential(
        nn.Conv2d(2, 64, 3, padding=7),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        norm(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 65, 3, padding="same", bias=False),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(260, 4),
    ),
}


def posed(model: nn.Module, n: int = 1, **training: object) -> Problem:
    data = Batch(torch.rand(n, 2, 8, 8, dtype=torch.float64), torch.arange(n) % 4)
    local = LocalTraining(**training)  # type: ignore[arg-type]
    sent = local_update(Broadcast(model), data, local)
    seen = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))
    return pose_problem(seen, Knowledge(input=SPEC, local=local), num_examples=n)


def start(n: int = 1) -> Candidates:
    return Candidates(torch.rand(3, n, 2, 8, 8, dtype=torch.float64), torch.zeros(3, n, dtype=torch.long))


@pytest.mark.parametrize("distance", [cosine, euclidean, l1_l2])
@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_equals_double_backprop(network: str, distance) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    model = NETWORKS[network]().double()
    problem, candidates = posed(model), start()
    before = {name: p.requires_grad for name, p in model.named_parameters()}
    with training_mode(model, False):
        objective = single_backprop_matching(problem, distance, None, candidates)
        assert objective is not None
        found = objective(candidates)
        bias = [n for n in problem.names if n.endswith("bias")][-1]
        signal = problem.observed[problem.names.index(bias)]
        for i, inputs in enumerate(candidates.inputs):
            x = inputs.clone().requires_grad_()
            loss = (model(x) * signal).sum()
            grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
            value = distance(grads, problem.observed, None)
            (expected,) = torch.autograd.grad(value, x)
            assert found.values[i].item() == pytest.approx(value.item(), rel=1e-9)
            assert torch.allclose(found.gradients[0][i], expected, rtol=1e-7, atol=1e-12)
    assert {name: p.requires_grad for name, p in model.named_parameters()} == before


def test_its_minimum_is_the_true_example() -> None:
    torch.manual_seed(1)
    model = NETWORKS["strided"]().double()
    data = Batch(torch.rand(1, 2, 8, 8, dtype=torch.float64), torch.tensor([2]))
    sent = local_update(Broadcast(model), data, LocalTraining())
    seen = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))
    problem = pose_problem(seen, Knowledge(input=SPEC), num_examples=1)
    with training_mode(model, False):
        objective = single_backprop_matching(problem, cosine, None, start())
        assert objective is not None
        at_truth = objective(Candidates(data.inputs[None], data.labels[None]))
    assert at_truth.values[0].abs() < 1e-12
    assert at_truth.gradients[0].abs().max() < 1e-9


class Scaled(nn.Module):
    """A parameter of its own that is in no layer we know."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))
        self.net = NETWORKS["dense"]()

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * self.net(x)


class Tied(nn.Module):
    """One layer, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.head = nn.Linear(128, 20), nn.Linear(20, 20), nn.Linear(20, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x.flatten(1)))
        return self.head(torch.relu(self.again(torch.relu(self.again(y)))))


class Mixing(nn.Module):
    """Right for one example, but not for several restarts at once."""

    def __init__(self) -> None:
        super().__init__()
        self.net = NETWORKS["dense"]()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x - x.mean(dim=0, keepdim=True) + x.sum(dim=0, keepdim=True))


def tied_chain() -> nn.Sequential:
    first, second = nn.Linear(20, 20), nn.Linear(20, 20)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), nn.Linear(128, 20), nn.ReLU(), first, second, nn.Linear(20, 4))


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(128, 20), nn.Sigmoid(), nn.Linear(20, 4)),
        nn.Sequential(nn.Flatten(), nn.Linear(128, 20), nn.ReLU(), nn.Linear(20, 4, bias=False)),
        Scaled(),
        Tied(),
        tied_chain(),
        Mixing(),
        nn.Sequential(
            nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, track_running_stats=False), nn.Flatten(), nn.Linear(108, 4)
        ),
        nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(192, 4)
        ),
    ],
    ids=[
        "smooth",
        "no last bias",
        "foreign parameter",
        "layer used twice",
        "tied weights",
        "examples mixed",
        "batch statistics",
        "circular padding",
    ],
)
def test_is_not_used_where_it_would_be_wrong(model: nn.Module) -> None:
    problem = posed(model.double())
    with training_mode(model, False):
        assert single_backprop_matching(problem, cosine, None, start()) is None


class Wide(nn.Module):
    """Not a chain, so that it is compared with double backprop first."""

    def __init__(self) -> None:
        super().__init__()
        self.net = NETWORKS["wide"]()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def test_restarts_by_the_dozen_equal_one_after_the_other() -> None:
    torch.manual_seed(2)
    model = Wide().double()
    problem, many = posed(model), Candidates(torch.rand(12, 1, 2, 8, 8).double(), torch.zeros(12, 1).long())
    with training_mode(model, False):
        objective = single_backprop_matching(problem, cosine, [0.5] * len(problem.names), many)
        assert objective is not None
        together = objective(many)
        alone = [objective(many.restart(r)) for r in range(12)]
    assert torch.allclose(together.values, torch.cat([e.values for e in alone]), rtol=1e-9)
    gradients = torch.cat([e.gradients[0] for e in alone])
    assert torch.allclose(together.gradients[0], gradients, rtol=1e-7, atol=1e-12)


def test_the_model_is_left_as_it_was() -> None:
    torch.manual_seed(3)
    model = NETWORKS["in place"]().double()
    model[0].weight.requires_grad_(False)
    attributes = {name: dict(vars(module)) for name, module in model.named_modules()}
    x = torch.rand(2, 2, 8, 8).double()
    with training_mode(model, False):
        before = model(x.clone())
        objective = single_backprop_matching(posed(model), cosine, None, start())
        assert objective is not None
        objective(start())
        assert torch.equal(model(x.clone()), before)
    for name, module in model.named_modules():
        assert vars(module).keys() == attributes[name].keys()
        assert getattr(module, "inplace", None) == attributes[name].get("inplace")
    assert not model[0].weight.requires_grad
    assert model[0].bias.requires_grad


def test_is_for_one_example_and_one_gradient_only() -> None:
    model = NETWORKS["dense"]().double()
    assert single_backprop_matching(posed(model, 2), cosine, None, start(2)) is None
    assert single_backprop_matching(posed(model, algorithm="fedavg", epochs=2), cosine, None, start()) is None
