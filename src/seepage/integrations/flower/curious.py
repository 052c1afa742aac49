"""A dishonest server in a live app: it sends what an attack crafts, and nobody else ever sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import nn

from seepage.attacks import ATTACKS, Attack
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.settings import construct
from seepage.core.types import (
    Broadcast,
    Exchange,
    InputSpec,
    Knowledge,
    LocalTraining,
    Reconstruction,
    Update,
    UpdateKind,
)
from seepage.integrations.flower.messages import ARRAYS, arrays_of, examples_of, named_alike, state_record
from seepage.integrations.flower.strategy import AroundStrategy
from seepage.protocol import loss_name
from seepage.protocol.copies import own_copy
from seepage.record.exchanges import from_array_record
from seepage.record.exchanges.reading import fit


class Curious(AroundStrategy):
    """`strategy`, run by a server that attacks its clients.

    attack: a name of `seepage list attacks`, with `options`, or an Attack. model: a function that builds the
    app's model. input: what one example is. local: how clients train, where the server knows it.

    In every round that the attack wants, clients get what it crafts. What they send back goes to the attack
    and not into the global model, which the next round and every evaluation get as it was before: aggregated,
    the trap would become the model of everybody. `reconstruct` gives what came out so far.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        attack: str | Attack,
        model: Callable[[], nn.Module],
        input: InputSpec,
        options: Mapping[str, Any] | None = None,
        local: LocalTraining | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(strategy)
        self.attack = attack if isinstance(attack, Attack) else _named(attack, options or {})
        if not self.attack.active:
            raise SpecError(
                "this attack sends no model of its own: record the exchanges (RecordingStrategy) and audit "
                "them, or choose one that crafts, such as trap_weights."
            )
        if isinstance(model, nn.Module):
            raise SpecError("model is a network that exists: give the class or function that builds one.")
        self.exchanges: list[Exchange] = []
        self._build = model
        self.known = Knowledge(input=input, loss=loss_name("auto", input.num_classes), local=local, seed=seed)
        self._honest: ArrayRecord | None = None
        self._sent: dict[int, tuple[nn.Module, Any]] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(super().configure_train(server_round, arrays, config, grid))
        honest = self._model(arrays)
        torch.manual_seed(self.known.seed)
        self.attack.check(honest, self.known)
        crafted = self.attack.next_model(honest, tuple(self.exchanges), self.known)
        self._honest, self._sent = None, {}
        if crafted is None:
            return messages
        if crafted.turns:
            raise SpecError(
                "this attack sends every client a model of its own under a secure sum, and this strategy "
                "sees single updates: choose an attack that sends one model, such as quantile_traps."
            )
        _refuse_other_layers(crafted.model, honest)
        record = state_record({name: t.detach().cpu() for name, t in crafted.model.state_dict().items()})
        for number, message in enumerate(messages):
            if crafted.clients is None or number in crafted.clients:
                kept = {name: part for name, part in message.content.items() if name != ARRAYS}
                # a new one: strategies share one content among all messages
                message.content = RecordDict({**kept, ARRAYS: record})
                self._sent[message.metadata.dst_node_id] = (crafted.model, crafted.secret)
        self._honest = arrays
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        kept = list(replies)
        if self._honest is None:
            return super().aggregate_train(server_round, kept)
        for reply in kept:
            node = reply.metadata.src_node_id
            if node in self._sent and reply.has_content():
                self._keep(reply, server_round - 1, *self._sent[node])
        _, metrics = super().aggregate_train(server_round, kept)
        return self._honest, metrics

    def reconstruct(self) -> Reconstruction:
        """What the attack makes of all that came back."""
        return self.attack.run(self.exchanges, self.known)

    def _keep(self, reply: Message, round_number: int, model: nn.Module, secret: Any) -> None:
        answer = arrays_of(reply)
        if answer is None:
            return
        own = own_copy(model)  # what an exchange holds must not change any more
        new = named_alike(own.state_dict(), answer)
        tensors = {
            name: new[name].to(p.device, p.dtype) - p.detach()
            for name, p in own.named_parameters()
            if p.requires_grad and name in new
        }
        update = Update(kind=UpdateKind.DELTA, tensors=tensors, num_examples=examples_of(reply))
        self.exchanges.append(
            Exchange(
                broadcast=Broadcast(own, round_number),
                update=update,
                clients=(int(reply.metadata.src_node_id),),
                secret=secret,
            )
        )

    def _model(self, arrays: ArrayRecord) -> nn.Module:
        model = self._build()
        state = from_array_record(arrays)
        fit(model, named_alike(model.state_dict(), state), "the global model")
        return model


def _named(name: str, options: Mapping[str, Any]) -> Attack:
    attack: Attack = construct(ATTACKS.find(name), dict(options), f"attack '{name}'")
    return attack


def _refuse_other_layers(crafted: nn.Module, honest: nn.Module) -> None:
    """A client of Flower loads arrays into its own model: another architecture cannot be sent."""
    shapes = [{n: tuple(t.shape) for n, t in model.state_dict().items()} for model in (crafted, honest)]
    if shapes[0] != shapes[1]:
        raise NotApplicable(
            "the attack adds layers of its own, but clients of a Flower app load what they receive into "
            "their own model: choose an attack that changes weights alone, such as trap_weights."
        )
