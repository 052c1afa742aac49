"""Going on inside a search that was interrupted: its state is kept somewhere every so often.

Like progress, this reaches an attack from outside and without its doing: whoever runs it says where states
are kept (`keeping`), and a search asks for its own `Checkpoint`. An attack knows neither files nor folders.

A state is a tree of dicts and lists with tensors and plain values at the leaves. It becomes one safetensors
file: the tensors, and the tree with the tensors' names in the header, as JSON. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

FORMAT = 2
_HEADER = "state"
_TENSOR = "$tensor"
_CHECKSUM = "checksum"
_KEY = "code and model"
_LARGEST_SHARE = 0.05
"""Of the time, for writing: a large state is written less often."""
_ROUNDING = 1e-4
"""Relative difference of two sketches of the same thing, computed anew."""

_LOOKED_AT = 2**20
"""Values of a tensor, at most, that a sketch takes by themselves."""

State = Any
"""A dict, list, tensor, number, string, bool or None; dicts and lists of such."""


class Store(Protocol):
    """Where states are kept, one for each key."""

    def read(self, key: str) -> bytes | None: ...

    def write(self, key: str, content: bytes) -> None: ...


def pack(state: State) -> bytes:
    """A state as one safetensors file.

    >>> unpack(pack({"step": 3, "moments": [torch.zeros(2), None]}))
    {'step': 3, 'moments': [tensor([0., 0.]), None]}
    """
    tensors: dict[str, Tensor] = {}

    def tree(node: State) -> State:
        if isinstance(node, Tensor):
            name = str(len(tensors))
            tensors[name] = node.detach().cpu().contiguous().clone()  # safetensors refuses shared memory
            return {_TENSOR: name}
        if isinstance(node, Mapping):
            return {key: tree(value) for key, value in node.items()}
        return [tree(value) for value in node] if isinstance(node, list | tuple) else node

    header = json.dumps(tree(state))
    return save(tensors, metadata={_HEADER: header, _CHECKSUM: _checksum(header, tensors)})


def _checksum(header: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(header.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def unpack(content: bytes) -> State:
    """The state, or ValueError where the file is cut off or was not written by `pack`."""
    try:
        tensors = load(content)
        length = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + length])["__metadata__"]
        if _checksum(metadata[_HEADER], tensors) != metadata[_CHECKSUM]:
            raise ValueError("its checksum does not fit")
        header = json.loads(metadata[_HEADER])

        def grown(node: State) -> State:
            if isinstance(node, dict):
                if _TENSOR in node:
                    return tensors[node[_TENSOR]].clone()  # aligned anew: sums depend on it in the last bit
                return {key: grown(value) for key, value in node.items()}
            return [grown(value) for value in node] if isinstance(node, list) else node

        return grown(header)
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"it is damaged ({type(error).__name__})") from error


def sketch(tensors: Iterable[Tensor]) -> Tensor:
    """Two numbers for each tensor, which another one would hardly lead to: (2k,) float64.

    Compared by tolerance and not by hash: a GPU sums in another order each time.

    >>> one, other = torch.randn(50), torch.randn(50)
    >>> bool(torch.equal(sketch((one,)), sketch((one,)))), bool(torch.equal(sketch((one,)), sketch((other,))))
    (True, False)
    """
    generator = torch.Generator().manual_seed(0)
    found = []
    for tensor in tensors:
        flat = tensor.detach().flatten()
        some = flat[:: 1 + flat.numel() // _LOOKED_AT].cpu().double()
        norm = some.norm()
        weights = torch.randn(some.numel(), generator=generator, dtype=torch.float64)
        # the product is normal with the norm for its deviation: far from 0 after this, so that ratios tell
        found.append(torch.stack([flat.norm().cpu().double(), 10 * norm + some @ weights]))
    return torch.cat(found)


@dataclass(frozen=True)
class Identity:
    """What a search must have in common with a kept state to go on from it."""

    exact: Mapping[str, Any]
    """Plain values."""
    sketch: Tensor
    """See `sketch`: of the observed update and of all else that is computed."""

    def differs_from(self, other: State) -> str:
        """Why a state with the identity `other` is not this search's; empty if it is."""
        if other["format"] != FORMAT:
            return "another version of seepage wrote it"
        wanted = json.loads(json.dumps(dict(self.exact)))
        if differing := [key for key in wanted if other["exact"].get(key) != wanted[key]]:
            if _KEY in differing:
                return "other code or another model wrote it"
            return f"it belongs to a search with another '{differing[0]}'"
        theirs = other["sketch"].to(self.sketch)
        same_shape = theirs.shape == self.sketch.shape
        if not same_shape or not torch.allclose(theirs, self.sketch, rtol=_ROUNDING, atol=1e-12):
            return "it belongs to another update"
        return ""

    def state(self) -> State:
        return {"format": FORMAT, "exact": dict(self.exact), "sketch": self.sketch}


@dataclass
class Keeping:
    """Where the searches inside a block keep their states, and what has come of it."""

    store: Store
    every: float
    key: str
    """Of the code and the model that the searches belong to."""
    searches: int = 0
    """Begun so far: they come in the same order every time, so a search is known by its number."""
    seconds_resumed: float = 0.0
    """What interrupted runs had already spent on the searches that were resumed."""


_KEEPING: ContextVar[Keeping | None] = ContextVar("checkpoint_store", default=None)


@contextmanager
def keeping(store: Store, *, every: float, key: str = "") -> Iterator[Keeping]:
    """Searches inside the block keep their state in `store` every so many seconds, and go on from it.

    A state that was kept under another `key` is not used.
    """
    kept = Keeping(store, every, key)
    token = _KEEPING.set(kept)
    try:
        yield kept
    finally:
        _KEEPING.reset(token)


class Checkpoint:
    """One search's way to its kept state. Outside of `keeping` it does nothing."""

    def __init__(self, identity: Callable[[], Identity]) -> None:
        """`identity` is asked only when there is something to compare or to write: it may cost a step."""
        self.notes: tuple[str, ...] = ()
        self._keeping = _KEEPING.get()
        self._begun = time.monotonic()
        self._compute = identity
        self._known: Identity | None = None
        self._settings: Mapping[str, Any] = {}
        if self._keeping is not None:
            self._key = str(self._keeping.searches)
            self._keeping.searches += 1
            self._due = self._begun + self._keeping.every

    def _identity(self) -> Identity:
        if self._known is None:
            # a model with dropout must neither give another answer each time nor go on differently after it
            with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
                torch.manual_seed(0)
                found = self._compute()
            assert self._keeping is not None
            exact = {**found.exact, **self._settings, _KEY: self._keeping.key}
            self._known = Identity(exact, found.sketch)
        return self._known

    def restore(self, settings: Mapping[str, Any]) -> tuple[State, float] | None:
        """The last kept state of this search and the seconds behind it. `settings`: its solver's."""
        if self._keeping is None:
            return None
        self._settings = settings
        content = self._keeping.store.read(self._key)
        if content is None:
            return None
        identity = self._identity()
        try:
            found = unpack(content)
            reason = identity.differs_from(found["identity"])
            state, seconds = found["state"], float(found["seconds"])
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            reason = str(error) if isinstance(error, ValueError) else "seepage did not write it"
        if reason:
            self.notes += (f"A kept state was not used, as {reason}: the search began anew.",)
            return None
        self._begun -= seconds
        self._keeping.seconds_resumed += seconds
        self.notes += (f"Resumed from what an interrupted run had kept after {seconds:.0f} s.",)
        return state, seconds

    def offer(self, state: Callable[[], State]) -> None:
        """Keep the state, if it is time again."""
        if self._keeping is not None and time.monotonic() >= self._due:
            self._write(state())

    def finish(self, state: Callable[[], State]) -> None:
        """Keep the last state of a long search: others may follow in the same run before it is complete."""
        if self._keeping is not None and time.monotonic() - self._begun >= self._keeping.every:
            self._write(state())

    def _write(self, state: State) -> None:
        assert self._keeping is not None
        before = time.monotonic()
        whole = {"identity": self._identity().state(), "seconds": before - self._begun, "state": state}
        try:
            self._keeping.store.write(self._key, pack(whole))
        except OSError as error:  # a full disk must not end a search of hours
            self.notes += (f"The state could not be kept ({error.strerror}): an interruption starts anew.",)
            self._keeping = None
            return
        after = time.monotonic()
        self._due = after + max(self._keeping.every, (after - before) / _LARGEST_SHARE)
