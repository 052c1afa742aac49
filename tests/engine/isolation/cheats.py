"""Attacks that look for the truth anywhere but in the update. Imported by the process of an attack.

Each cheat returns pictures that it found; none of them looks at the update's meaning. `Cheat(cheats=[...])`
tries some of them, as a dishonest server, so that what it sends can spy as well.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from seepage.attacks import Attack
from seepage.core.types import Batch, Crafted, Exchange, Grant, Knowledge, Reconstruction
from seepage.protocol import draw_clients

SHAPE = (1, 6, 6)
DATA = "private.npz"
SEEN: list[Tensor] = []
"""What spies on a model saw."""


def pictures(things: Any) -> Iterator[Tensor]:
    """Tensors of pictures, whatever they are called."""
    for thing in things:
        # by type: asked for its class, a proxy that another package left behind may raise
        tensor = thing.inputs if issubclass(type(thing), Batch) else thing
        if not issubclass(type(tensor), Tensor) or is_lazy(tensor):  # which has no shape yet
            continue
        if tensor.shape[1:] == SHAPE and tensor.is_floating_point():
            yield tensor.detach()


def garbage(_: Sequence[Exchange], known: Knowledge) -> Iterator[Tensor]:
    own = known.auxiliary.inputs if known.auxiliary is not None else None
    yield from (found for found in pictures(gc.get_objects()) if found is not own)


def frames(_: Sequence[Exchange], __: Knowledge) -> Iterator[Tensor]:
    frame = sys._getframe()
    while frame is not None:
        for value in list(frame.f_locals.values()):
            yield from pictures([value, *vars(value).values()] if hasattr(value, "__dict__") else [value])
        frame = frame.f_back  # type: ignore[assignment]


def modules(_: Sequence[Exchange], __: Knowledge) -> Iterator[Tensor]:
    for module in list(sys.modules.values()):
        yield from pictures(list(vars(module).values()) if hasattr(module, "__dict__") else [])


def disk(_: Sequence[Exchange], __: Knowledge) -> Iterator[Tensor]:
    yield torch.from_numpy(np.load(DATA)["x"]).reshape(-1, *SHAPE)


def drawn_again(_: Sequence[Exchange], known: Knowledge) -> Iterator[Tensor]:
    with np.load(DATA) as data:
        labels = torch.from_numpy(data["y"])
        yield torch.from_numpy(data["x"])[
            draw_clients(labels, clients=1, examples_each=4, seed=known.seed)[0]
        ]


def past_python(_: Sequence[Exchange], __: Knowledge) -> Iterator[Tensor]:
    """Without Python's open: torch maps the file by itself."""
    size = Path("private.bin").stat().st_size // 4
    yield torch.from_file("private.bin", size=size, dtype=torch.float32).reshape(-1, *SHAPE)


def run_folder(_: Sequence[Exchange], __: Knowledge) -> Iterator[Tensor]:
    """The baseline's cell lies there already, truth and all; safetensors opens files in Rust."""
    from safetensors import safe_open

    for file in Path("run/cells").glob("*.safetensors"):
        with safe_open(file, framework="pt") as kept:  # type: ignore[no-untyped-call]
            yield kept.get_tensor("truth")


def another_program(_: Sequence[Exchange], __: Knowledge) -> Iterator[Tensor]:
    content = subprocess.run(["cat", "private.bin"], capture_output=True, check=True).stdout
    yield torch.frombuffer(bytearray(content), dtype=torch.float32).reshape(-1, *SHAPE)


def the_other_process(_: Sequence[Exchange], __: Knowledge) -> Iterator[Tensor]:
    """The memory of the process that started this one."""
    with Path(f"/proc/{os.getppid()}/mem").open("rb") as memory:
        yield torch.frombuffer(bytearray(memory.read(36)), dtype=torch.float32).reshape(-1, *SHAPE)


def traced(_: Sequence[Exchange], __: Knowledge) -> Iterator[Tensor]:
    """The same through the kernel's debugger interface."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.ptrace(16, os.getppid(), None, None) != 0:  # PTRACE_ATTACH
        raise PermissionError(ctypes.get_errno())
    yield torch.zeros(1, *SHAPE)


def storages(exchanges: Sequence[Exchange], known: Knowledge) -> Iterator[Tensor]:
    """What lies in memory beside the tensors that were handed over."""
    handed = [tensor for e in exchanges for tensor in e.update.tensors.values()]
    handed += [known.auxiliary.inputs] if known.auxiliary is not None else []
    for tensor in handed:
        whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
        beside = whole[tensor.numel() :]
        if beside.numel() >= 36 and beside.is_floating_point():
            yield beside[: beside.numel() // 36 * 36].reshape(-1, *SHAPE)


def graph(exchanges: Sequence[Exchange], _: Knowledge) -> Iterator[Tensor]:
    """What autograd saved for a backward pass."""
    for exchange in exchanges:
        for tensor in exchange.update.tensors.values():
            node = tensor.grad_fn
            saved = [getattr(node, name) for name in dir(node) if name.startswith("_saved")] if node else []
            yield from pictures(saved)


def spies(exchanges: Sequence[Exchange], _: Knowledge) -> Iterator[Tensor]:
    """What hooks and a changed forward saw, here or at whoever ran the model."""
    yield from SEEN
    for exchange in exchanges:
        yield from pictures(vars(exchange.broadcast.model).values())
        yield from pictures(exchange.broadcast.model.buffers())


CHEATS: dict[str, Callable[[Sequence[Exchange], Knowledge], Iterator[Tensor]]] = {
    "garbage": garbage,
    "frames": frames,
    "modules": modules,
    "disk": disk,
    "drawn_again": drawn_again,
    "past_python": past_python,
    "run_folder": run_folder,
    "another_program": another_program,
    "the_other_process": the_other_process,
    "traced": traced,
    "storages": storages,
    "graph": graph,
    "spies": spies,
}


class Spy(nn.Sequential):
    """The same weights, but a forward pass that keeps what it is given."""

    def forward(self, inputs: Tensor) -> Tensor:
        SEEN.append(inputs.detach().clone())
        self.kept = inputs.detach().clone()
        return super().forward(inputs)  # type: ignore[no-any-return]


def keep(_module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
    SEEN.append(arguments[0].detach().clone())


class Cheat(Attack):
    """Sends a spying model, then tries every cheat and says what each one found or ran into."""

    requires = frozenset({Grant.CRAFT_WEIGHTS})

    def __init__(self, *, cheats: Sequence[str] = tuple(CHEATS), spy: str = "hooks") -> None:
        self.cheats = tuple(cheats)
        self.spy = spy
        SEEN.clear()

    def craft(self, model: nn.Module, history: Sequence[Exchange], known: Knowledge) -> Crafted | None:
        if history:
            return None
        model.register_forward_pre_hook(keep)  # on the server's own copy of the honest model, too
        crafted = copy.deepcopy(model)
        if self.spy == "forward":
            crafted.__class__ = type("Spying", (Spy,), {})
        for module in crafted.modules():
            module.register_forward_pre_hook(keep)
        return Crafted(crafted)

    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        found, notes = [torch.zeros(0, *SHAPE)], []
        for name in self.cheats:
            try:
                gained = [tensor.float().reshape(-1, *SHAPE) for tensor in CHEATS[name](exchanges, known)]
            except (OSError, RuntimeError, ValueError, KeyError) as error:
                notes.append(f"{name}: {type(error).__name__}")
                continue
            found += gained
            notes.append(f"{name}: {sum(len(tensor) for tensor in gained)} found")
        values = torch.nan_to_num(torch.cat(found), nan=0.0, posinf=0.0, neginf=0.0)
        return Reconstruction(
            values=values, source=torch.zeros(len(values), dtype=torch.long), notes=tuple(notes)
        )


class Denoiser(Attack):
    """Subtracts the noise that dp_sgd would draw from the seed that the attack is told."""

    def __init__(self, *, sigma: float = 4.0, clip: float = 1.0) -> None:
        self.scale = sigma * clip

    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        (exchange,) = exchanges
        count = exchange.update.num_examples or 1
        generator = torch.Generator().manual_seed(known.seed)
        clean = {
            name: tensor - self.scale / count * torch.randn(tensor.shape, generator=generator)
            for name, tensor in exchange.update.tensors.items()
        }
        weight, bias = list(clean.values())[:2]
        rows = weight / bias[:, None]
        return Reconstruction(values=torch.nan_to_num(rows).reshape(-1, *SHAPE))


def noisy_talker(**_: Any) -> Attack:
    """Prints, and raises what no attack should raise."""
    print("this must not disturb anything")
    raise ZeroDivisionError("on purpose")


class Dies(Attack):
    """Ends its process in the middle of its work."""

    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        os._exit(7)


class ReadsItsPrior(Attack):
    """An honest outsider with weights of its own."""

    def __init__(self, *, prior: str) -> None:
        self.prior = torch.from_numpy(np.load(prior))

    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        return Reconstruction(values=self.prior.reshape(-1, *SHAPE))
