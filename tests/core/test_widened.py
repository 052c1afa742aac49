"""Half precision reckoned with in float32: the numbers of a plain float32 copy, without its memory."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from seepage.core.lazy import shares_memory
from seepage.core.widened import Widened

Narrow = tuple[nn.Module, nn.Module, list[Tensor]]


def networks(narrow: torch.dtype) -> Narrow:
    """The same network with frozen layers that are widened, and with plain float32 ones."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 6), nn.Linear(6, 4, bias=False), nn.LayerNorm(4))
    held = []
    for number in (0, 2, 3):
        layer = plain[number]
        layer.weight = nn.Parameter(layer.weight.detach().to(narrow), requires_grad=False)
        held.append(layer.weight)
    widened = copy.deepcopy(plain)
    for number, of in zip((0, 2, 3), held, strict=True):
        widened[number].weight = nn.Parameter(Widened.of(of), requires_grad=False)
        plain[number].weight = nn.Parameter(of.float(), requires_grad=False)
    return widened, plain, held


def output(model: nn.Module, tokens: Tensor) -> Tensor:
    out: Tensor = model(tokens).tanh().square().sum()
    return out


def first_and_second(model: nn.Module, tokens: Tensor) -> list[Tensor]:
    trained = [p for p in model.parameters() if p.requires_grad]
    slopes = torch.autograd.grad(output(model, tokens), trained, create_graph=True)
    return [*slopes, *torch.autograd.grad(sum(s.square().sum() for s in slopes), trained)]


def functional(model: nn.Module, tokens: Tensor) -> list[Tensor]:
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}

    def of_one(values: dict[str, Tensor], one: Tensor) -> Tensor:
        out: Tensor = functional_call(model, values, (one[None],)).tanh().square().sum()
        return out

    along = {name: torch.ones_like(p) for name, p in trained.items()}
    slope = jvp(lambda values: of_one(values, tokens[0]), (trained,), (along,))[1]
    return [*vmap(grad(of_one), in_dims=(None, 0))(trained, tokens).values(), slope]


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("read", [first_and_second, functional])
def test_gradients_are_those_of_a_plain_copy_and_nothing_is_widened_for_good(
    narrow: torch.dtype, read: Callable[[nn.Module, Tensor], list[Tensor]]
) -> None:
    widened, plain, held = networks(narrow)
    tokens = torch.tensor([[1, 2, 3], [4, 4, 0]])
    for mine, wanted in zip(read(widened, tokens), read(plain, tokens), strict=True):
        assert torch.equal(mine, wanted)
    assert all(map(shares_memory, held))


def test_what_a_run_keeps_for_the_way_back_is_narrow() -> None:
    widened, plain, _ = networks(torch.bfloat16)
    kept: dict[str, list[Tensor]] = {"widened": [], "plain": []}
    for name, model in (("widened", widened), ("plain", plain)):
        with torch.autograd.graph.saved_tensors_hooks(kept[name].append, lambda _: torch.empty(0)):
            model(torch.tensor([[1, 2]]))
    held = [tensor for tensor in kept["widened"] if isinstance(tensor, Widened)]
    frozen = {p.data_ptr() for p in plain.parameters() if not p.requires_grad}
    assert held and len(held) == sum(tensor.data_ptr() in frozen for tensor in kept["plain"])


def test_who_writes_writes_for_all_views_and_not_to_the_original() -> None:
    narrow = torch.arange(6.0).view(2, 3).bfloat16()
    shown = Widened.of(narrow)
    turned = shown.t()
    shown[1].add_(2**-20)
    shown.data[0, 1] = 1 + 2**-20
    assert turned[1].tolist() == [1 + 2**-20, 4 + 2**-20]
    assert narrow.tolist() == [[0, 1, 2], [3, 4, 5]]
    nn.init.ones_(shown)
    assert turned.sum().item() == 6


def test_a_copy_is_a_plain_tensor_and_a_module_can_change_its_type() -> None:
    widened, plain, _ = networks(torch.bfloat16)
    copied = copy.deepcopy(widened)
    assert not any(isinstance(p, Widened) for p in copied.parameters())
    assert all(torch.equal(a, b) for a, b in zip(copied.parameters(), plain.parameters(), strict=True))
    tokens = torch.tensor([[1, 2, 3]])
    wanted = plain.double()(tokens)
    assert torch.equal(copied.double()(tokens), wanted) and torch.equal(widened.double()(tokens), wanted)


def test_large_weights_get_memory_of_their_own_and_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = first_and_second(networks(torch.bfloat16)[1], torch.tensor([[1, 2, 3]]))
    monkeypatch.setattr("seepage.core.widened._LARGE", 1)
    for mine, right in zip(
        first_and_second(networks(torch.bfloat16)[0], torch.tensor([[1, 2, 3]])), wanted, strict=True
    ):
        assert torch.equal(mine, right)
