"""Distances and priors against closed forms, direct loops and finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from seepage.attacks.inversion.distances import (
    DISTANCES,
    LAYER_WEIGHTS,
    absolute,
    cosine,
    euclidean,
    l1_l2,
    pull_of,
)
from seepage.attacks.inversion.feature_statistics import (
    expected_statistics,
    feature_statistics,
    statistics_distance,
)
from seepage.attacks.inversion.objective import Candidates, Objective, sum_of, update_matching
from seepage.attacks.inversion.priors import (
    TV_KINDS,
    PriorFactory,
    anisotropic_tv,
    double_opponent_tv,
    isotropic_tv,
    small_values,
    total_variation,
)
from seepage.core.types import LocalTraining
from seepage.protocol import training_mode

from .setting import conv_net, exchange_for, image_spec, problem_for, random_batch


def tensors(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator, dtype=torch.float64) for size in ((4, 3), (4,), (2, 2, 2))]


def flat(parts: list[Tensor]) -> Tensor:
    return torch.cat([p.flatten() for p in parts])


def test_distances_equal_those_of_the_concatenated_vectors() -> None:
    a, b = tensors(0), tensors(1)
    x, y = flat(a), flat(b)
    assert cosine(a, b).item() == pytest.approx(1 - torch.cosine_similarity(x, y, dim=0).item())
    assert euclidean(a, b).item() == pytest.approx(((x - y).norm() / y.norm()).item() ** 2)
    l1 = (x - y).abs().sum() / y.abs().sum()
    assert absolute(a, b).item() == pytest.approx(l1.item())
    assert l1_l2(a, b, alpha=0.3).item() == pytest.approx((euclidean(a, b) + 0.3 * l1).item())


@pytest.mark.parametrize(
    "name", sorted(set(DISTANCES) - {"cosine_by_layer"})
)  # which is blind to a layer's length
def test_layer_weights_equal_scaled_layers(name: str) -> None:
    a, b, weights = tensors(0), tensors(1), [1.0, 4.0, 0.25]
    power = [w if name == "absolute" else math.sqrt(w) for w in weights]
    if name == "l1_l2":
        expected = l1_l2(a, b, weights, alpha=0.0) + 0.1 * sum(
            w * (x - y).abs().sum() for w, x, y in zip(weights, a, b, strict=True)
        ) / sum(w * y.abs().sum() for w, y in zip(weights, b, strict=True))
    else:
        scaled = [[s * t for s, t in zip(power, side, strict=True)] for side in (a, b)]
        expected = DISTANCES[name](scaled[0], scaled[1], None)
    torch.testing.assert_close(DISTANCES[name](a, b, weights), expected)


@pytest.mark.parametrize("name", DISTANCES)
def test_distances_are_zero_at_the_update_itself(name: str) -> None:
    a = tensors(0)
    assert DISTANCES[name](a, a, LAYER_WEIGHTS["early"](3)).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("layers", sorted(LAYER_WEIGHTS))
@pytest.mark.parametrize("name", sorted(DISTANCES))
def test_pull_equals_autograd(name: str, layers: str) -> None:
    torch.manual_seed(0)
    shapes = [(3, 4), (5,), (2, 2, 3)]
    observed, simulated = ([torch.randn(shape).double() for shape in shapes] for _ in range(2))
    weights = LAYER_WEIGHTS[layers](3)
    leaves = [t.clone().requires_grad_() for t in simulated]
    expected = DISTANCES[name](leaves, observed, weights)
    gradients = torch.autograd.grad(expected, leaves)
    value, pull = pull_of(DISTANCES[name], observed, weights)(simulated)
    assert value.item() == pytest.approx(expected.item(), rel=1e-12)
    for found, wanted in zip(pull, gradients, strict=True):
        assert torch.allclose(found, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("size", [1e-1, 1e-3, 1e-5])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_small_angle_does_not_round_to_zero(size: float, weighted: bool) -> None:
    """1 - cos of two float32 vectors at an angle of about `size`, against float64."""
    generator = torch.Generator().manual_seed(0)
    observed = [torch.randn(40, 30, generator=generator), torch.randn(30, generator=generator)]
    near = [3 * (o + size * torch.randn(o.shape, generator=generator)) for o in observed]
    weights = [0.5, 2.0] if weighted else None
    exact = [[t.double() for t in tensors] for tensors in (near, observed)]
    a, b = (
        torch.cat([(w**0.5) * t.flatten() for w, t in zip(weights or [1, 1], ts, strict=True)])
        for ts in exact
    )
    unit_a, unit_b = a / a.norm(), b / b.norm()
    expected = float((unit_a - unit_b).square().sum() / 2)
    tolerance = max(1e-5, 1e-7 / size)
    assert float(cosine(near, observed, weights)) == pytest.approx(expected, rel=tolerance)
    value, _ = pull_of(cosine, observed, weights)([t.clone() for t in near])
    assert float(value) == pytest.approx(expected, rel=5 * tolerance)


def test_opposite_and_dead_updates_are_far() -> None:
    one = [torch.tensor([1.0, 2.0])]
    for other, expected in (([-one[0]], 2.0), ([torch.zeros(2)], 1.0)):
        assert float(cosine(other, one)) == pytest.approx(expected)
        assert float(pull_of(cosine, one)([other[0].clone()])[0]) == pytest.approx(expected)


def test_pull_of_a_dead_network_is_finite() -> None:
    value, (pull,) = pull_of(cosine, [torch.tensor([3.0, 4.0])])([torch.zeros(2)])
    assert value.item() == 1.0
    assert pull.isfinite().all()


def test_total_variation_of_a_tiny_image_in_closed_form() -> None:
    # rows (0 1 / 3 1): down 3 and 0, right 1 and -2
    image = torch.tensor([[0.0, 1.0], [3.0, 1.0]]).reshape(1, 1, 1, 2, 2)
    assert anisotropic_tv(image).item() == pytest.approx(3 / 2 + 3 / 2)
    assert isotropic_tv(image).item() == pytest.approx(math.sqrt(9 + 1))


def test_double_opponent_tv_against_a_direct_loop() -> None:
    images = torch.rand(2, 2, 3, 4, 5, dtype=torch.float64)
    for restart, found in zip(images, double_opponent_tv(images), strict=True):
        norms = []
        for x in restart:
            for i in range(3):
                for j in range(4):
                    square = 0.0
                    for down, right in ((1, 0), (0, 1)):
                        d = [float(x[c, i + down, j + right] - x[c, i, j]) for c in range(3)]
                        opponents = [d[0] - d[1], d[0] - d[2], d[1] - d[2]]
                        square += sum(v * v for v in (*d, *opponents))
                    norms.append(math.sqrt(square))
        assert found.item() == pytest.approx(sum(norms) / len(norms), rel=1e-6)


def test_a_grey_edge_costs_less_than_a_coloured_one_in_double_opponent_tv() -> None:
    grey = torch.zeros(1, 1, 3, 4, 4)
    grey[..., 2:] = 1 / math.sqrt(3)  # the same gradient norm over channels as the red edge
    red = torch.zeros(1, 1, 3, 4, 4)
    red[:, :, 0, :, 2:] = 1.0
    assert double_opponent_tv(grey) < double_opponent_tv(red)


@pytest.mark.parametrize(
    ("channels", "same"), [(1, anisotropic_tv), (2, anisotropic_tv), (3, double_opponent_tv)]
)
def test_the_usual_total_variation_follows_the_channels(
    channels: int, same: Callable[[Tensor], Tensor]
) -> None:
    images = torch.rand(2, 2, channels, 4, 5, dtype=torch.float64)
    torch.testing.assert_close(TV_KINDS["auto"](images), same(images), rtol=0.0, atol=0.0)


def numeric_gradient(objective: Objective, at: Candidates, where: int, step: float = 1e-5) -> Tensor:
    """Central differences of the sum over restarts, at a few coordinates of one free tensor."""
    chosen = at.free[where]
    result = []
    for k in range(0, chosen.numel(), max(1, chosen.numel() // 4)):
        values = []
        for sign in (1, -1):
            free = [t.clone() for t in at.free]
            free[where].view(-1)[k] += sign * step
            values.append(objective(at.moved(free)).values.sum())
        result.append((values[0] - values[1]) / (2 * step))
    return torch.stack(result)


def some_of(gradient: Tensor) -> Tensor:
    return gradient.reshape(-1)[:: max(1, gradient.numel() // 4)]


LOCALS = {
    "fedsgd": LocalTraining(),
    "fedavg": LocalTraining(
        algorithm="fedavg", batch_size=2, epochs=2, lr=0.3, momentum=0.5, weight_decay=0.01
    ),
}


@pytest.mark.parametrize("local", LOCALS)
@pytest.mark.parametrize("name", DISTANCES)
def test_matching_gradient_agrees_with_finite_differences(name: str, local: str) -> None:
    spec = image_spec()
    batch = random_batch(spec, [0, 3, 3])
    problem = problem_for(conv_net(spec), spec, batch, LOCALS[local])
    start = Candidates(
        random_batch(spec, [0] * 6, seed=1).inputs.reshape(2, 3, *spec.shape),
        torch.randn(2, 3, spec.num_classes, dtype=torch.float64),
    )
    objective = update_matching(problem, DISTANCES[name], LAYER_WEIGHTS["early"](len(problem.names)))
    gradients = objective(start).gradients
    for where in (0, 1):
        numeric = numeric_gradient(objective, start, where)
        torch.testing.assert_close(some_of(gradients[where]), numeric, rtol=1e-4, atol=1e-9)


PRIORS: dict[str, PriorFactory] = {
    **{kind: total_variation(0.7, kind=kind) for kind in TV_KINDS},
    "small_values": small_values(0.7),
    "statistics": feature_statistics(0.7),
}


@pytest.mark.parametrize("name", PRIORS)
def test_prior_gradient_agrees_with_finite_differences(name: str) -> None:
    spec = image_spec(channels=3)
    batch = random_batch(spec, [0, 3])
    problem = problem_for(conv_net(spec, norm=True), spec, batch, LocalTraining())
    prior = PRIORS[name](problem)
    assert prior is not None
    start = Candidates(
        random_batch(spec, [0] * 4, seed=1).inputs.reshape(2, 2, *spec.shape), torch.zeros(2, 2).long()
    )
    with training_mode(problem.model, False):
        matching = update_matching(problem, cosine)
        objective = sum_of(matching, [prior])
        found = objective(start)
        assert torch.all(found.values != matching(start).values)
        numeric = numeric_gradient(objective, start, 0)
    torch.testing.assert_close(some_of(found.gradients[0]), numeric, rtol=1e-4, atol=1e-8)


def test_relative_priors_multiply_the_match() -> None:
    """match * (1 + prior), with the gradient of that product, and zero where the match is exact."""
    spec = image_spec()
    batch = random_batch(spec, [0, 3])
    problem = problem_for(conv_net(spec), spec, batch, LocalTraining())
    prior = total_variation(0.7)(problem)
    assert prior is not None
    matching = update_matching(problem, euclidean)
    objective = sum_of(matching, [prior], weighing="relative")
    inputs = random_batch(spec, [0] * 4, seed=1).inputs.reshape(2, 2, *spec.shape)
    start = Candidates(inputs, batch.labels.expand(2, 2))
    found = objective(start)
    torch.testing.assert_close(found.values, matching(start).values * (1 + prior(inputs)))
    numeric = numeric_gradient(objective, start, 0)
    torch.testing.assert_close(some_of(found.gradients[0]), numeric, rtol=1e-4, atol=1e-8)
    assert objective(Candidates(batch.inputs[None], batch.labels[None])).values.item() == 0


def test_sent_buffers_reveal_the_batch_statistics() -> None:
    """From how far the running statistics moved, the private batch's own follow exactly."""
    spec = image_spec()
    model, batch = conv_net(spec, norm=True), random_batch(spec, [0, 3, 1])
    local = LocalTraining(batch_norm="train", send_buffers=True)
    problem = problem_for(model, spec, batch, local)
    features = model[0](batch.inputs).detach()
    expected = expected_statistics(problem)["1"]
    torch.testing.assert_close(expected.mean, features.mean((0, 2, 3)))
    torch.testing.assert_close(expected.variance, features.var((0, 2, 3)))
    with training_mode(model, True):
        at_truth = statistics_distance(problem, {"1": expected}, batch.inputs)
        elsewhere = statistics_distance(problem, {"1": expected}, batch.inputs.flip(1) * 0.5)
    assert at_truth.item() == pytest.approx(0, abs=1e-12) and elsewhere.item() > 1e-3


def test_without_sent_buffers_the_running_statistics_are_expected() -> None:
    spec = image_spec()
    model = conv_net(spec, norm=True)
    problem = problem_for(model, spec, random_batch(spec, [0, 3]), LocalTraining())
    assert exchange_for(model, random_batch(spec, [0]), LocalTraining()).update.buffers is None
    torch.testing.assert_close(expected_statistics(problem)["1"].mean, model[1].running_mean)
