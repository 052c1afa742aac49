"""The parts of R-GAP: steps undone, chains found, equations of a layer and their solution."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.attacks.closed_form.recursion.chain import Link, trace_chain
from seepage.attacks.closed_form.recursion.solve import DENSE_UNKNOWNS, LayerSystem, Solved, solve
from seepage.attacks.closed_form.recursion.steps import step_of, undo
from seepage.core.errors import NotApplicable
from seepage.core.types import InputSpec, Modality

SPEC = InputSpec(modality=Modality.IMAGE, shape=(2, 6, 6), num_classes=3)


def trained_norm() -> nn.BatchNorm2d:
    torch.manual_seed(5)
    norm = nn.BatchNorm2d(2).double()
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        nn.init.normal_(tensor)
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return norm.eval()


@pytest.mark.parametrize(
    "module",
    [
        nn.Sigmoid(),
        nn.Tanh(),
        nn.LeakyReLU(0.2),
        nn.Softplus(beta=2.0, threshold=3.0),
        nn.ELU(0.7),
        trained_norm(),
    ],
    ids=lambda m: type(m).__name__,
)
def test_a_step_is_undone_and_its_slope_is_autograds(module: nn.Module) -> None:
    torch.manual_seed(0)
    z = 2 * torch.randn(1, 2, 4, 4, dtype=torch.float64)
    step = step_of(module)
    assert step is not None
    watched = z.clone().requires_grad_()
    output = module(watched)
    (expected,) = torch.autograd.grad(output.sum(), watched)
    torch.testing.assert_close(step.forward(z), output.detach())
    found, slope = undo([step], output.detach())
    if isinstance(module, nn.Softplus):  # torch's own softplus jumps by e^-threshold where it turns linear
        below = 2.0 * z <= 3.0
        found, slope, z, expected = found[below], slope[below], z[below], expected[below]
    torch.testing.assert_close(found, z, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(slope, expected, rtol=1e-9, atol=1e-9)


def test_features_outside_the_range_are_moved_into_it() -> None:
    for module in (nn.Sigmoid(), nn.Tanh(), nn.Softplus(), nn.ELU()):
        step = step_of(module)
        assert step is not None
        assert bool(step.inverse(torch.tensor([-1.5, 1.5], dtype=torch.float64)).isfinite().all())


class Functional(nn.Module):
    """Activations called as functions, modules registered in the wrong order."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3 * 36, 3)
        self.first = nn.Conv2d(2, 3, 3, padding="same")

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)).flatten(1))


def test_a_chain_is_found_by_running_the_model() -> None:
    chain = trace_chain(Functional(), SPEC)
    assert [link.weight for link in chain.links] == ["first.weight", "last.weight"]
    first = chain.links[0]
    assert len(first.steps) == 1 and first.window is not None and first.window.padding == (1, 1)
    assert float(first.steps[0].forward(torch.tensor(0.5))) == pytest.approx(math.tanh(0.5))

    in_place = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.LeakyReLU(0.1, inplace=True), nn.Dropout(), nn.Flatten(), nn.Linear(48, 3)
    )
    links = trace_chain(in_place, SPEC).links
    assert [(link.name, len(link.steps)) for link in links] == [("0", 1), ("4", 0)]
    assert links[0].output_shape == (3, 4, 4) and links[1].input_shape == (48,)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act, self.last = nn.Conv2d(2, 2, 3, padding=1), nn.Tanh(), nn.Linear(72, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last((x + self.act(self.conv(x))).flatten(1))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act, self.last = nn.Conv2d(2, 2, 3, padding=1), nn.Tanh(), nn.Linear(72, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.conv(self.act(self.conv(x)))).flatten(1))


def ends_in(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), *layers)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (ends_in(nn.ReLU(), nn.Flatten(), nn.Linear(72, 3)), r"'1' \(ReLU\) cannot be inverted"),
        (ends_in(nn.LeakyReLU(0.0), nn.Flatten(), nn.Linear(72, 3)), "cannot be inverted"),
        (ends_in(nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(18, 3)), r"'2' \(AvgPool2d\) pools"),
        (ends_in(nn.Tanh(), nn.Flatten(), nn.Linear(72, 3, bias=False)), "must end in nn.Linear with a bias"),
        (ends_in(nn.Conv2d(2, 3, 6), nn.Flatten()), "must end in nn.Linear with a bias"),
        (Residual(), "between 'act' and 'last' .* residual connection"),
        (Twice(), "share a weight"),
        (nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.Flatten(), nn.Linear(32, 3)), "has groups"),
        (nn.Sequential(nn.Conv2d(2, 2, 2, padding="same"), nn.Flatten(), nn.Linear(72, 3)), "differently"),
        (nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3)), "several positions"),
    ],
)
def test_what_breaks_a_chain_is_named(model: nn.Module, words: str) -> None:
    with pytest.raises(NotApplicable, match=words):
        trace_chain(model, SPEC)


CONVOLUTIONS = [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 5, "padding": 2, "stride": 2},
    {"kernel_size": (3, 2), "padding": (1, 0), "stride": (1, 2)},
    {"kernel_size": 2, "dilation": 2, "bias": False},
]


def system_of(layer: nn.Module, shape: tuple[int, ...], seed: int = 0) -> tuple[LayerSystem, Tensor, Tensor]:
    """A layer's equations, an input, and the gradient of <delta, layer(input)>, all from autograd's side."""
    torch.manual_seed(seed)
    spec = InputSpec(modality=Modality.IMAGE, shape=shape, num_classes=3)
    layer = layer.double()
    x = torch.randn(1, *shape, dtype=torch.float64)
    z = layer(x)
    model = nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(z[0].numel(), 3)).double()
    link: Link = trace_chain(model, spec).links[0]
    delta, slope = torch.randn_like(z), torch.rand_like(z)
    weight = layer.get_parameter("weight").detach()
    return LayerSystem(link, weight, delta, slope), x, z.detach()


@pytest.mark.parametrize("settings", CONVOLUTIONS)
def test_the_equations_are_those_of_the_layer(settings: dict[str, object]) -> None:
    conv = nn.Conv2d(2, 3, **settings)  # type: ignore[arg-type]
    system, x, z = system_of(conv, (2, 7, 6))
    watched = x.clone().requires_grad_()
    delta = system.delta.reshape(z.shape)
    loss = (conv(watched) * delta).sum()
    weight_gradient, input_gradient = torch.autograd.grad(loss, [conv.weight, watched])
    bias = 0.0 if conv.bias is None else conv.bias.detach().unsqueeze(1)
    torch.testing.assert_close(system.times(x), system.right_side(z, bias, weight_gradient))
    torch.testing.assert_close(system.signal_below(), input_gradient)


@pytest.mark.parametrize("settings", CONVOLUTIONS)
def test_adjoint_and_column_norms_against_the_written_out_matrix(settings: dict[str, object]) -> None:
    system, _, _ = system_of(nn.Conv2d(2, 3, **settings), (2, 5, 6))  # type: ignore[arg-type]
    basis = torch.eye(60, dtype=torch.float64).reshape(60, 2, 5, 6)
    matrix = system.times(basis).T  # (equations, 60)
    equations = torch.randn(3, len(matrix), dtype=torch.float64)
    torch.testing.assert_close(system.adjoint(equations).flatten(1), equations @ matrix)
    torch.testing.assert_close(system.column_norms().flatten(), matrix.norm(dim=0))


def solved(system: LayerSystem, right: Tensor, *, iterations: int = 4000) -> Solved:
    return solve(system, right, tolerance=1e-12, precision=1e-10, max_iterations=iterations, seed=0)


@pytest.mark.parametrize("size", [8, 14])
def test_both_solvers_agree_with_lstsq(size: int) -> None:
    assert (DENSE_UNKNOWNS >= 2 * 8 * 8) and (DENSE_UNKNOWNS < 2 * 14 * 14)
    system, x, _ = system_of(nn.Conv2d(2, 6, 3, padding=1), (2, size, size))
    torch.manual_seed(1)
    exact = system.times(x)
    noisy = exact + 0.1 * torch.randn_like(exact)
    unknowns = x.numel()
    matrix = system.times(torch.eye(unknowns, dtype=torch.float64).reshape(unknowns, *x.shape[1:])).T
    assert torch.linalg.matrix_rank(matrix) == unknowns
    found = solved(system, noisy)
    expected = torch.linalg.lstsq(matrix, noisy[0]).solution
    torch.testing.assert_close(found.values.flatten(), expected, rtol=1e-6, atol=1e-7)
    left_over = (matrix @ expected - noisy[0]).norm() / noisy.norm()
    assert found.residual == pytest.approx(float(left_over), rel=1e-6)
    assert not found.deficient and round(found.rank) == unknowns


@pytest.mark.parametrize("size", [8, 16])
def test_lost_dimensions_are_counted(size: int) -> None:
    """A kernel of one pixel with stride 2 sees a quarter of the pixels."""
    system, x, _ = system_of(nn.Conv2d(1, 1, 1, stride=2), (1, size, size))
    found = solved(system, system.times(x))
    seen = size * size // 4
    assert found.deficient
    assert found.rank == pytest.approx(seen, abs=1e-6)
    assert int(found.seen.sum()) == seen and bool(found.seen[..., ::2, ::2].all())
    assert found.deficient and not found.ambiguous
    torch.testing.assert_close(found.values[..., ::2, ::2], x[..., ::2, ::2], rtol=1e-6, atol=1e-6)
    assert float(found.values[..., 1::2, :].abs().max()) < 1e-12


def test_gradient_equations_repeat_one_forward_equation_for_each_pair_of_channels() -> None:
    """dW W^T = delta (z - b)^T: of O L + O C K equations at most O L + O C K - O^2 are independent."""
    system, x, _ = system_of(nn.Conv2d(2, 2, 3, stride=2, padding=1), (2, 10, 10))
    assert system.equations == 2 * 25 + 2 * 2 * 9
    assert solved(system, system.times(x)).rank == 2 * 25 + 2 * 2 * 9 - 2**2


def test_without_gradients_only_the_forward_equations_count() -> None:
    system, x, _ = system_of(nn.Linear(5, 3), (5,))
    both = LayerSystem(system.link, system.weight, system.delta, torch.ones(3).double(), use_gradient=True)
    forward = LayerSystem(
        system.link, system.weight, system.delta, torch.ones(3).double(), use_gradient=False
    )
    assert solved(both, both.times(x)).rank == 5
    assert solved(forward, forward.times(x)).rank == 3


def test_saturated_outputs_fade_out() -> None:
    """An output with slope 0 carries no information, so a wrong value there does no harm."""
    torch.manual_seed(0)
    system, x, _ = system_of(nn.Linear(4, 8), (4,))
    slope = torch.ones(8, dtype=torch.float64)
    slope[3] = 0.0
    system = LayerSystem(system.link, system.weight, system.delta, slope)
    z = F.linear(x, system.weight)
    z[0, 3] = 1e6
    gradient = system.delta @ x
    found = solved(system, system.right_side(z, 0.0, gradient))
    torch.testing.assert_close(found.values, x)
