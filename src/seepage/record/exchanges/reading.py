"""Reading recorded exchanges, one at a time: a folder may hold more than memory does.

Files may come from anybody. Nothing in them is executed, and what is wrong with one is said in one sentence.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from seepage.core.errors import LogError
from seepage.core.types import Broadcast, Exchange, Update, UpdateKind
from seepage.core.user_code import reason
from seepage.models.hugging_face import is_adapted
from seepage.record.exchanges.info import (
    FORMAT_VERSION,
    INFO,
    MODEL,
    NAME,
    UPDATE,
    ExchangeInfo,
    LocalTrainingInfo,
    Part,
    exchange_name,
)
from seepage.record.files import printable
from seepage.record.sealing import file_checksum

_MOST_JSON = 64 * 2**20
"""Bytes of a JSON that is read: `rows` of a million examples are a tenth of it."""
_ENDS: dict[Part, str] = {"model": MODEL, "update": UPDATE}


class _Version(BaseModel):
    format: str = ""
    format_version: int = 0


@dataclass(frozen=True)
class Known:
    """What is known of the exchanges of a folder besides what their JSON says, or better."""

    examples: int | None = None
    local: LocalTrainingInfo = field(default_factory=LocalTrainingInfo)

    def added_to(self, info: ExchangeInfo) -> ExchangeInfo:
        """
        >>> recorded = ExchangeInfo(kind="delta", round=1, client=0, dtype="float32", local={"steps": 2})
        >>> found = Known(examples=8, local=LocalTrainingInfo(lr=0.1)).added_to(recorded)
        >>> found.examples, found.local.lr, found.local.steps
        (8, 0.1, 2)
        """
        said = self.local.model_dump(exclude_none=True)
        local = info.local.model_copy(update=said)
        examples = info.examples if self.examples is None else self.examples
        return info.model_copy(update={"local": local, "examples": examples})


@dataclass(frozen=True, slots=True)
class RecordedExchange:
    """One exchange of a folder. What it is made of is read when it is asked for, and not kept."""

    folder: Path
    round: int
    client: int
    known: Known = Known()

    @property
    def name(self) -> str:
        return exchange_name(self.round, self.client)

    @property
    def info(self) -> ExchangeInfo:
        """The JSON, and in its place what is known besides."""
        return self.known.added_to(_read_info(self.folder, self.name))

    @property
    def digest(self) -> str:
        """Of all three files."""
        info = self.info
        sums = {
            part: info.checksums.get(part) or file_checksum(self.folder / (self.name + end))
            for part, end in _ENDS.items()
        }
        return hashlib.sha256(f"{sums}{info.model_dump_json()}".encode()).hexdigest()

    def tensors(self, part: Part) -> dict[str, Tensor]:
        """The model that was sent, or the update that came back."""
        file = self.folder / (self.name + _ENDS[part])
        try:
            content = file.read_bytes()
        except OSError as error:
            raise LogError(
                f"'{file.name}' cannot be read ({error.strerror}): an exchange has three files, of the "
                "model, of the update and a JSON; copy them together."
            ) from None
        wanted = self.info.checksums.get(part)
        if wanted is not None and hashlib.sha256(content).hexdigest() != wanted:
            raise LogError(
                f"'{file.name}' is not what was recorded (its checksum is another): copy it again, or remove "
                f"the files of {self.name}."
            )
        try:
            found = load(content)
        except (SafetensorError, ValueError, TypeError, RuntimeError, KeyError, OverflowError) as error:
            raise LogError(
                f"'{file.name}' is truncated, damaged or no safetensors file "
                f"({printable(reason(error))}): copy or record it again."
            ) from None
        if not found:
            raise LogError(f"'{file.name}' holds no tensor: record the exchange again.")
        return found

    def exchange(self, model: nn.Module) -> Exchange:
        """As an attack takes it. `model`: of this architecture; it is given the recorded weights and kept.

        Parameters that the update lacks were not trained or not sent, and are frozen in the model. What is
        frozen in `model` need not have been sent: it keeps the values that it has there.
        """
        info = self.info
        sent, answer = (in_full(model, self.tensors(part)) for part in ("model", "update"))
        fit(model, sent, f"{self.name}{MODEL}")
        parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        _refuse_strangers(answer, own_tensors(model), f"{self.name}{UPDATE}")
        if not any(name in answer for name in parameters):
            raise LogError(f"'{self.name}{UPDATE}' has none of the model's parameters: nothing can be read.")
        for name, parameter in parameters.items():
            parameter.requires_grad_(name in answer and parameter.is_floating_point())
        values = {
            n: answer[n].to(t.device, t.dtype) for n, t in {**parameters, **buffers}.items() if n in answer
        }
        tensors = {n: values[n] for n in parameters if n in values}
        if info.kind == "weights":
            tensors = {n: t - parameters[n].detach() for n, t in tensors.items()}
        moved = {n: values[n] for n in buffers if n in values}
        if info.buffers == "differences" and info.kind != "weights":
            moved = {n: buffers[n].detach() + t for n, t in moved.items()}
        kind = UpdateKind.GRADIENT if info.kind == "gradient" else UpdateKind.DELTA
        return Exchange(
            broadcast=Broadcast(model, info.round),
            update=Update(kind=kind, tensors=tensors, num_examples=info.examples, buffers=moved or None),
            clients=(info.client,),
        )


@dataclass(frozen=True)
class RecordedFolder:
    """A folder of recorded exchanges, in the order of rounds and clients.

    >>> import tempfile
    >>> from seepage.record.exchanges.writing import Recorder
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     layer = nn.Linear(2, 1)
    ...     gradient = {"weight": torch.ones(1, 2), "bias": torch.ones(1)}
    ...     _ = Recorder(folder).write(layer.state_dict(), gradient, kind="gradient", round=1, client=0)
    ...     (recorded,) = RecordedFolder.open(folder)
    ...     recorded.exchange(nn.Linear(2, 1)).update.tensors["bias"].tolist()
    [1.0]
    """

    path: Path
    exchanges: tuple[RecordedExchange, ...]

    @classmethod
    def open(cls, path: Path | str) -> RecordedFolder:
        """Check what is known of every exchange; all of it stays on disk."""
        folder = Path(path)
        if not folder.is_dir():
            raise LogError(f"'{folder}' is no folder: give one with recorded exchanges.")
        names = [p.name.removesuffix(INFO) for p in folder.iterdir() if p.name.endswith(INFO)]
        found = (_read_info(folder, name) for name in names if NAME.fullmatch(name))  # none is kept
        places = sorted((info.round, info.client) for info in found)
        if not places:
            raise LogError(
                f"'{folder}' has no recorded exchange, that is, no file like round0001-client0001.json: "
                "record some, or make one of an update file with seepage import."
            )
        return cls(folder, tuple(RecordedExchange(folder, *place) for place in places))

    def __len__(self) -> int:
        return len(self.exchanges)

    def __iter__(self) -> Iterator[RecordedExchange]:
        return iter(self.exchanges)

    def __getitem__(self, number: int) -> RecordedExchange:
        return self.exchanges[number]


def _read_info(folder: Path, name: str) -> ExchangeInfo:
    file = folder / (name + INFO)
    try:
        if file.stat().st_size > _MOST_JSON:
            raise LogError(f"'{file.name}' is larger than {_MOST_JSON >> 20} MiB: it is none of seepage's.")
        content = file.read_bytes()
        written = _Version.model_validate_json(content)
        if written.format == "seepage-exchange" and written.format_version != FORMAT_VERSION:
            raise LogError(
                f"'{file.name}' has version {written.format_version} of the format, this version reads "
                f"{FORMAT_VERSION}: read it with the version that wrote it, or record again."
            )
        info = ExchangeInfo.model_validate_json(content)
    except OSError as error:
        raise LogError(f"'{file.name}' cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = printable(".".join(map(str, first["loc"])) or "the whole file")
        raise LogError(
            f"'{file.name}' does not describe an exchange ({place}: {printable(first['msg'])}): see "
            "docs/recorded.md, or remove it."
        ) from None
    if info.name != name:
        raise LogError(
            f"'{file.name}' describes the exchange {info.name}: its files were renamed; name them as they "
            "were, or correct round and client."
        )
    return info


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The state dict, with the parameters and buffers that it leaves out."""
    state = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    return {**dict(model.named_buffers()), **dict(model.named_parameters()), **state}


def fit(model: nn.Module, state: Mapping[str, Tensor], file: str) -> None:
    """Give the model these weights, or say in one sentence why they are not its own."""
    own = own_tensors(model)
    _refuse_strangers(state, own, file)
    if absent := sorted(set(unsent(model, state)) - _frozen_names(model)):
        raise LogError(
            f"'{file}' lacks {len(absent)} of the model's tensors (first: '{absent[0]}'): the recorded model "
            "and --model must belong together."
        )
    broken = [n for n, t in state.items() if t.is_floating_point() and not bool(torch.isfinite(t).all())]
    if broken:
        raise LogError(f"'{file}' holds NaN or infinite values ('{printable(broken[0])}'): record it again.")
    model.load_state_dict(dict(state), strict=False)


def in_full(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By the model's own names: peft's `get_peft_model_state_dict` leaves out that of the adapter."""
    adapters = "|".join(map(re.escape, getattr(model, "peft_config", ()) if is_adapted(model) else ()))
    own = own_tensors(model)
    shortened = re.compile(rf"(\.modules_to_save)?\.({adapters})(?=\.|$)")
    full = {shortened.sub("", name): name for name in own} if adapters else {}
    return {name if name in own else full.get(name, name): t for name, t in tensors.items()}


def unsent(model: nn.Module, state: Mapping[str, Tensor]) -> list[str]:
    """What the model has and the state lacks, but for counters of batches."""
    return [n for n in model.state_dict() if n not in state and not n.endswith("num_batches_tracked")]


def _frozen_names(model: nn.Module) -> set[str]:
    """Parameters that clients do not train, and the buffers of layers that are frozen as a whole."""
    frozen = {name for name, p in model.named_parameters(remove_duplicate=False) if not p.requires_grad}
    for prefix, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        if own and not any(p.requires_grad for p in own):
            frozen |= {f"{prefix}.{name}".lstrip(".") for name, _ in module.named_buffers(recurse=False)}
    return frozen


def _refuse_strangers(found: Mapping[str, Tensor], own: Mapping[str, Tensor], file: str) -> None:
    for name, tensor in found.items():
        if name not in own:
            raise LogError(
                f"'{file}' has a tensor '{printable(name)}' that the model does not have: the recorded "
                "exchange and --model must belong together."
            )
        if tensor.shape != own[name].shape:
            raise LogError(
                f"'{printable(name)}' has shape {tuple(tensor.shape)} in '{file}' and "
                f"{tuple(own[name].shape)} in the model: the two must belong together."
            )
