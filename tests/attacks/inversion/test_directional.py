"""The gradient by a difference of two against double backprop of the same objective."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from seepage.attacks.inversion import directional, pieces
from seepage.attacks.inversion.directional import directional_matching
from seepage.attacks.inversion.distances import Distance, cosine, early_layers, euclidean
from seepage.attacks.inversion.objective import Candidates, Objective, update_matching
from seepage.attacks.inversion.problem import Problem, pose_problem
from seepage.core.types import Batch, Broadcast, Exchange, InputSpec, Knowledge, LocalTraining, Modality
from seepage.protocol import local_update

SPEC = InputSpec(modality=Modality.IMAGE, shape=(2, 8, 8), num_classes=4)


class Tokens(nn.Module):
    """Attention over rows, with a token of its own whose gradient shares memory with another's."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Parameter(torch.zeros(1, 1, 16)), nn.Parameter(torch.zeros(1, 9, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, activation="gelu", batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.transpose(1, 2).flatten(2)
        joined = torch.cat([self.token.expand(len(x), -1, -1), rows], dim=1) + self.place
        return self.head(self.layer(joined)[:, 0])


def convolutions(
    activation: Callable[[], nn.Module], *between: nn.Module, bias: bool = True
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1),
        *between,
        activation(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1),
        activation(),
        nn.Flatten(),
        nn.Linear(128, 4, bias=bias),
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "GELU": lambda: convolutions(nn.GELU),
    "GroupNorm": lambda: convolutions(nn.ReLU, nn.GroupNorm(2, 8)),
    "no head bias": lambda: convolutions(nn.ReLU, bias=False),
    "in place": lambda: convolutions(lambda: nn.ReLU(inplace=True)),
    "LeakyReLU": lambda: convolutions(lambda: nn.LeakyReLU(0.2)),
    "attention": Tokens,
}


@pytest.fixture(autouse=True)
def plain_attention() -> Iterator[None]:
    """Fused kernels have no second derivative to compare with."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


def posed(build: Callable[[], nn.Module], n: int, dtype: torch.dtype, **training: object) -> Problem:
    torch.manual_seed(n)
    model = build().to(dtype).eval()
    data = Batch(torch.rand(n, 2, 8, 8, dtype=dtype), torch.arange(n) % 4)
    local = LocalTraining(**training)  # type: ignore[arg-type]
    seen = Exchange(
        broadcast=Broadcast(model), update=local_update(Broadcast(model), data, local), clients=(0,)
    )
    return pose_problem(seen, Knowledge(input=SPEC, local=local, loss="cross_entropy"), num_examples=n)


def candidates(problem: Problem, restarts: int = 1, seed: int = 0) -> Candidates:
    n = problem.num_examples
    drawn = torch.rand(restarts, n, 2, 8, 8, generator=torch.Generator().manual_seed(seed))
    return Candidates(drawn.to(problem.observed[0]), (torch.arange(n) % 4).expand(restarts, n))


def error(fast: Objective, problem: Problem, distance: Distance, at: Candidates) -> float:
    found, expected = fast(at), update_matching(problem, distance)(at)
    assert torch.allclose(found.values, expected.values, rtol=1e-4, atol=1e-7)
    return float((found.gradients[0] - expected.gradients[0]).norm() / expected.gradients[0].norm())


@pytest.mark.parametrize("distance", [cosine, euclidean])
@pytest.mark.parametrize("network", NETWORKS)
def test_it_is_double_backprop_s_gradient(network: str, distance: Distance) -> None:
    for n, dtype, bound in ((1, torch.float64, 1e-5), (5, torch.float64, 1e-5), (3, torch.float32, 2e-2)):
        problem = posed(NETWORKS[network], n, dtype)
        fast = directional_matching(problem, distance, None, candidates(problem))
        assert fast is not None
        for seed in (0, 1, 2):
            assert error(fast, problem, distance, candidates(problem, seed=seed)) <= bound


def test_across_a_kink_the_difference_stays_on_its_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a step so large that units would change sides, only the softmax and the products bend."""
    problem = posed(NETWORKS["no head bias"], 4, torch.float64)
    monkeypatch.setattr(directional, "_STEPS", (5e5,))
    monkeypatch.setattr(directional, "_AGREEMENT", float("inf"))
    errors = []
    for kept in (pieces._RELU, frozenset()):
        monkeypatch.setattr(pieces, "_RELU", kept)
        fast = directional_matching(problem, cosine, None, candidates(problem))
        assert fast is not None
        errors.append(error(fast, problem, cosine, candidates(problem)))
    assert errors[0] < 0.1 and errors[1] > 3 * errors[0]


def test_where_rounding_leaves_no_digits_double_backprop_takes_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = posed(NETWORKS["GELU"], 2, torch.float32)
    start = candidates(problem)
    fast = directional_matching(problem, cosine, None, start)
    assert fast is not None
    monkeypatch.setattr(directional, "_DIGITS", 1e9)
    assert error(fast, problem, cosine, start) < 1e-6


def test_the_step_of_the_difference_lies_on_a_plateau(monkeypatch: pytest.MonkeyPatch) -> None:
    for network, build in NETWORKS.items():
        problem = posed(build, 2, torch.float32)
        for steps in ((0.3, 0.1, 0.03), (0.2, 0.05, 0.01), (0.1,)):
            monkeypatch.setattr(directional, "_STEPS", steps)
            fast = directional_matching(problem, cosine, None, candidates(problem))
            assert fast is not None, (network, steps)
            assert error(fast, problem, cosine, candidates(problem, seed=1)) < 0.03, (network, steps)


def test_one_local_step_is_a_gradient_too() -> None:
    problem = posed(NETWORKS["GELU"], 3, torch.float64, algorithm="fedavg", lr=0.05)
    for distance in (cosine, euclidean):
        fast = directional_matching(problem, distance, None, candidates(problem))
        assert fast is not None
        assert error(fast, problem, distance, candidates(problem, seed=1)) <= 1e-5


@pytest.mark.parametrize("network", ["GELU", "no head bias", "attention"])
@pytest.mark.parametrize(
    "steps", [{"epochs": 2}, {"batch_size": 1}, {"batch_size": 2, "epochs": 3, "shuffle_seed": 5}]
)
def test_several_local_steps_are_gone_back_through(network: str, steps: dict[str, int]) -> None:
    problem = posed(NETWORKS[network], 3, torch.float64, algorithm="fedavg", lr=0.1, **steps)
    for distance in (cosine, euclidean):
        fast = directional_matching(problem, distance, None, candidates(problem))
        assert fast is not None
        assert error(fast, problem, distance, candidates(problem, seed=1)) <= 1e-5


def test_the_curvature_of_local_steps_counts() -> None:
    """At this rate a step back that leaves out the Hessian is far off, so the test above can fail."""
    problem = posed(NETWORKS["GELU"], 3, torch.float64, algorithm="fedavg", lr=0.1, batch_size=1)
    fast = directional_matching(problem, cosine, None, candidates(problem))
    still = replace(problem, training=replace(problem.training, lr=1e-9))
    frozen = directional_matching(still, cosine, None, candidates(problem))
    assert fast is not None and frozen is not None
    one, other = (each(candidates(problem)).gradients[0] for each in (fast, frozen))
    assert (one - other).norm() > 1e-3 * one.norm()


def test_layers_that_weigh_differently() -> None:
    problem = posed(NETWORKS["GELU"], 3, torch.float64, algorithm="fedavg", lr=0.1, batch_size=1)
    shares = early_layers(len(problem.observed))
    fast = directional_matching(problem, cosine, shares, candidates(problem))
    assert fast is not None
    found, expected = (
        objective(candidates(problem, seed=1)).gradients[0]
        for objective in (fast, update_matching(problem, cosine, shares))
    )
    assert (found - expected).norm() <= 1e-5 * expected.norm()


def test_what_it_does_not_hold_for_is_left_to_double_backprop() -> None:
    heavy = posed(NETWORKS["GELU"], 2, torch.float32, algorithm="fedavg", epochs=2, momentum=0.9)
    assert directional_matching(heavy, cosine, None, candidates(heavy)) is None
    kinked = posed(lambda: convolutions(nn.ReLU6), 2, torch.float32)
    assert directional_matching(kinked, cosine, None, candidates(kinked)) is None
    one = posed(NETWORKS["GELU"], 2, torch.float32)
    assert directional_matching(one, cosine, None, candidates(one, restarts=4)) is None  # vmap is faster
