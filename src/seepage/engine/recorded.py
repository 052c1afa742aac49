"""A folder of recorded exchanges as what an audit is about: one cell for each attack and exchange.

The number of an exchange in the folder takes the place of a seed. Every cell reads its own exchange and keeps
nothing of it, so that ten thousand need the memory of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from seepage.core.errors import SpecError
from seepage.core.types import Grant, LocalTraining
from seepage.core.user_code import USER_CODE_ERRORS, reason
from seepage.data import Dataset
from seepage.data.objects import from_object
from seepage.engine.spec import NO_TRUTH, AuditSpec, RecordedSpec
from seepage.protocol import custom_threat
from seepage.record.exchanges import ExchangeInfo, Known, RecordedExchange, RecordedFolder
from seepage.record.exchanges.reading import in_full, unsent


@dataclass(frozen=True)
class Recorded:
    """The exchanges of an audit, and which rows of its data are the truth behind each."""

    exchanges: tuple[RecordedExchange, ...]
    rows: tuple[Tensor, ...] | None
    """None: nobody gave the truth, and nothing can be scored."""
    examples: int
    """Of the data that the rows are of."""

    @cached_property
    def free(self) -> Tensor:
        """Rows that are behind no exchange."""
        private = torch.zeros(self.examples, dtype=torch.bool)
        for rows in self.rows or ():
            private[rows] = True
        return (~private).nonzero().squeeze(1)

    @classmethod
    def of(cls, spec: AuditSpec, dataset: Dataset) -> Recorded | None:
        """What the specification names; None where it names no recording."""
        if spec.recorded is None:
            return None
        exchanges = chosen(spec.recorded)
        if spec.data.name == NO_TRUTH:
            return cls(exchanges, None, 0)
        alone = len({one.client for one in exchanges}) == 1
        rows = tuple(_rows(one.info, dataset, alone=alone) for one in exchanges)
        return cls(exchanges, rows, len(dataset))


def chosen(wanted: RecordedSpec) -> tuple[RecordedExchange, ...]:
    """The exchanges of these rounds and clients, in their order."""
    known = Known(wanted.examples, wanted.local)
    found = tuple(
        replace(one, known=known)
        for one in RecordedFolder.open(wanted.folder)
        if (wanted.rounds is None or one.round in wanted.rounds)
        and (wanted.clients is None or one.client in wanted.clients)
    )
    if not found:
        raise SpecError(f"'{wanted.folder}' has no exchange of these rounds and clients: choose others.")
    return found


def settled(spec: AuditSpec) -> AuditSpec:
    """The specification with what the recording says: how many exchanges, and what is not known of them."""
    if spec.recorded is None:
        return spec
    facts = [_facts(one.info) for one in chosen(spec.recorded)]
    threat = custom_threat(
        spec.threat.base, grant=spec.threat.grant, deny=spec.threat.deny, rounds=spec.threat.rounds
    )
    if Grant.CRAFT_WEIGHTS in threat.grants:
        raise SpecError(
            f"under the threat model '{spec.threat.base}' the server chooses what it sends, but these "
            "exchanges are over: choose another one, or let the attack send its models in a live app "
            "(seepage.integrations.flower.Curious)."
        )
    unknown = {
        Grant.BATCH_SIZE: any(examples is None for examples, _, _ in facts),
        Grant.LOCAL_TRAINING: not all(trained for _, trained, _ in facts),
        Grant.LABELS: spec.data.name == NO_TRUTH,
    }
    denied = [str(grant) for grant, lacking in unknown.items() if lacking and grant in threat.grants]
    deny = (*spec.threat.deny, *(grant for grant in denied if grant not in spec.threat.deny))
    protocol = spec.protocol.model_copy(
        update={
            "clients": 1,
            "rounds": 1,
            "aggregation": "per_client",
            "batch_size": max(examples or 1 for examples, _, _ in facts),
            "algorithm": "fedsgd" if all(gradient for _, _, gradient in facts) else "fedavg",
        }
    )
    return spec.model_copy(
        update={
            "threat": spec.threat.model_copy(update={"deny": deny}),
            "protocol": protocol,
            "seeds": tuple(range(len(facts))),
            "server_seed": 0 if spec.server_seed is None else spec.server_seed,
        }
    )


def _facts(info: ExchangeInfo) -> tuple[int | None, bool, bool]:
    """Its examples, whether its local training is known, and whether it is a gradient."""
    return info.examples, local_training(info) is not None, info.kind == "gradient"


def local_training(info: ExchangeInfo) -> LocalTraining | None:
    """As the replay of an attack takes it; None where not enough is known, or nothing here replays it."""
    known = info.local
    shared = {"loss": known.loss or "auto", "batch_norm": known.batch_norm or "eval"}
    if info.kind == "gradient":
        return LocalTraining(algorithm="fedsgd", **shared)  # type: ignore[arg-type]
    if known.lr is None or (known.steps is None and known.epochs is None):
        return None
    if known.optimizer not in (None, "sgd", "adam", "adamw"):
        return None
    return LocalTraining(
        algorithm="fedavg",
        batch_size=known.batch_size,
        # so many steps, however often they go through the data
        epochs=known.epochs or known.steps or 1,
        steps=known.steps,
        lr=known.lr,
        optimizer=known.optimizer or "sgd",  # type: ignore[arg-type]
        momentum=known.momentum or 0.0,
        weight_decay=known.weight_decay or 0.0,
        schedule=known.schedule or "constant",
        accumulation=known.accumulation or 1,
        clip_norm=known.clip_norm,
        mixed_precision=bool(known.mixed_precision),
        shuffle_seed=0 if known.shuffle else None,
        **shared,  # type: ignore[arg-type]
    )


def reached(info: ExchangeInfo, held: int) -> int:
    """Of `held` examples those that are in the update, as far as it is known: a client may stop early."""
    if info.kind == "gradient" or info.local.steps is None:
        return held
    return min(held, info.local.steps * (info.local.batch_size or held))


def check_base(recorded: Recorded, built: nn.Module, another: Callable[[], nn.Module]) -> None:
    """Refuse a frozen base that nobody sent and that is drawn anew whenever the model is built.

    another: the model under another seed. Of adapters alone the rest is taken from --model, so that it has to
    be the clients' own; a base that differs from one time to the next cannot be.
    """
    missing = set(unsent(built, in_full(built, recorded.exchanges[0].tensors("model"))))
    if not missing:
        return
    first, second = built.state_dict(), another().state_dict()
    if drawn := [n for n in first if n in missing and not torch.equal(first[n].cpu(), second[n].cpu())]:
        raise SpecError(
            f"the recorded model lacks '{drawn[0]}' and --model draws it at random: load the weights that "
            "the clients have (from_pretrained, or torch.manual_seed before the model is built), or record "
            "the whole model."
        )


def by_client(load: Any, exchanges: Sequence[RecordedExchange], make: Any) -> Dataset:
    """The truth from a function of the client: the data of all of them, and whose each example is.

    make: from (inputs, labels) to a data set.
    """
    pairs = {client: _held(load, client) for client in _clients(exchanges)}
    whole: Dataset = make(
        (torch.cat([x for x, _ in pairs.values()]), torch.cat([y for _, y in pairs.values()]))
    )
    owners = torch.cat([torch.full((len(y),), client) for client, (_, y) in pairs.items()])
    return whole.owned_by(owners)


def _held(load: Any, client: int) -> tuple[Tensor, Tensor]:
    """A client's examples and labels, as arrays or in whatever else data may come."""
    try:
        given = load(client=client)
        if isinstance(given, tuple) and len(given) == 2 and not isinstance(given[0], DataLoader):
            return torch.as_tensor(given[0]), torch.as_tensor(given[1])
    except USER_CODE_ERRORS as error:
        raise SpecError(
            f"the truth's function failed for client {client} with {type(error).__name__}: {reason(error)}; "
            "call it by itself to see where."
        ) from error
    if isinstance(given, tuple):
        raise SpecError(
            f"the truth's function returned {len(given)} loaders for client {client}: return the one that "
            "the client trains on."
        )
    found = from_object(given, name=f"the truth of client {client}")
    return found.inputs, found.labels


def _clients(exchanges: Sequence[RecordedExchange]) -> list[int]:
    return sorted({one.client for one in exchanges})


def _rows(info: ExchangeInfo, dataset: Dataset, *, alone: bool) -> Tensor:
    """Which rows of the truth this client trained on, in the order that the recording has them."""
    if info.rows is not None:
        rows = torch.tensor(info.rows, dtype=torch.long)
        if not len(rows) or int(rows.max()) >= len(dataset):
            raise SpecError(
                f"{info.name} names rows of a data set with more than the {len(dataset)} examples that the "
                "truth has: give the data set that the clients trained on."
            )
        return rows
    if dataset.owners is not None:
        return (dataset.owners == info.client).nonzero().squeeze(1)
    if alone:
        return torch.arange(len(dataset))
    raise SpecError(
        f"the truth does not say which of its examples client {info.client} holds: name a function of the "
        "client (package.module:function with an argument `client`), or give `rows` in the JSON of each "
        "exchange."
    )
