"""The protocol of an audit as a user writes it, and what a client of it does."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from seepage.core.types import LocalTraining
from seepage.engine.written import Count, CountFromZero, Number, Strict, Switch


class ProtocolSpec(Strict):
    """The protocol as the deployment runs it."""

    batch_size: Count = 8
    """Examples each client uses in a round."""
    holds: Count | None = None
    """Examples that each client holds, of which a round draws every one with chance batch_size / holds
    (Poisson sampling), so that batch_size is the expected number: what is attacked is a sample of just that
    size, and epsilon counts the chance. None: a client holds what its rounds use."""
    clients: Count = 1
    rounds: Count = 1
    """Honest rounds played, with training in between; a dishonest server plays as many as it needs."""
    fresh_batches: Switch = False
    """Clients draw new examples every round."""
    aggregation: Literal["per_client", "mean", "sum", "secure_sum", "median"] = "per_client"
    fakes: CountFromZero = 0
    """secure_sum: all-zero contributions that a dishonest server adds to a victim's (Section 10.4)."""
    minimum_honest: Count = 1
    """secure_sum: contributors that must prove to each other that they are honest, or nobody sends."""
    audited: Count | None = None
    """So many of the clients, drawn at random, are played and attacked, for a server that sees each update;
    what they show about the others is reported with an interval. None: all of them."""
    attacked: Count | None = None
    """The server attacks so many of the updates only, the longest first: they say most. None: all of them."""
    partition: Annotated[str, Field(pattern=r"^(iid|dirichlet|distinct|[\w.]+:\w+)$")] = "iid"
    """Who holds what: "distinct" gives a client no two examples of a class; "package.module:function" is
    called as function(labels, clients=, examples_each=, seed=) and returns each client's indices."""
    dirichlet_alpha: Number = Field(default=0.5, gt=0)
    algorithm: Literal["fedsgd", "fedavg"] = "fedsgd"
    local_batch_size: Count | None = None
    local_epochs: Count = 1
    local_steps: Count | None = None
    """Local steps in all, however often they go through the data. None: what the epochs lead to."""
    lr: Number = Field(default=0.1, gt=0)
    momentum: Number = Field(default=0.0, ge=0, lt=1)
    weight_decay: Number = Field(default=0.0, ge=0)
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """Of fedavg, as in torch.optim. Attacks read sums of gradients, and say so where Adam leaves none."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How a client's learning rate falls over its local steps."""
    accumulation: Count = 1
    """Mini-batches whose mean gradient makes one step of the optimiser."""
    clip_norm: Number | None = Field(default=None, gt=0)
    """Clients scale each step's gradient down to this norm at most."""
    mixed_precision: Switch = False
    """Clients compute under torch.autocast in bfloat16, as many do on a GPU."""
    shuffle: Switch = False
    """Clients go through their examples in an order that the server does not know."""
    loss: str = "auto"
    batch_norm: Literal["eval", "train"] = "eval"
    send_buffers: Switch = False

    @property
    def played(self) -> int:
        """Clients that are played."""
        return self.clients if self.audited is None else self.audited

    @property
    def local_training(self) -> LocalTraining:
        """What a client does."""
        return LocalTraining(
            algorithm=self.algorithm,
            batch_size=self.local_batch_size,
            # so many steps, however often they go through the data
            epochs=max(self.local_epochs, self.local_steps or 1),
            steps=self.local_steps,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            optimizer=self.optimizer,
            schedule=self.schedule,
            accumulation=self.accumulation,
            clip_norm=self.clip_norm,
            mixed_precision=self.mixed_precision,
            shuffle_seed=0 if self.shuffle else None,
            loss=self.loss,
            batch_norm=self.batch_norm,
            send_buffers=self.send_buffers,
        )

    @model_validator(mode="after")
    def _drawn_from_all(self) -> Self:
        if self.audited is None:
            return self
        if self.audited > self.clients:
            raise ValueError(f"audited is {self.audited}, but there are only {self.clients} clients")
        if self.rounds > 1 or self.attacked is not None:
            raise ValueError(
                "audited clients are a random sample of one round: later models come from all clients, and "
                "attacked takes the longest updates; leave rounds and attacked out"
            )
        return self

    @model_validator(mode="after")
    def _drawn_by_chance(self) -> Self:
        if self.holds is None:
            return self
        if self.holds < self.batch_size:
            raise ValueError(
                f"holds is {self.holds}, but a round draws batch_size = {self.batch_size} of them on average"
            )
        if self.algorithm != "fedsgd":
            raise ValueError(
                "holds (Poisson sampling) belongs to algorithm = 'fedsgd', where a round is a step"
            )
        return self

    @model_validator(mode="after")
    def _only_in_secure_sums(self) -> Self:
        if self.aggregation != "secure_sum" and (self.fakes or self.minimum_honest > 1):
            raise ValueError("fakes and minimum_honest belong to aggregation = 'secure_sum'")
        return self

    @model_validator(mode="after")
    def _only_in_local_training(self) -> Self:
        usual = self.optimizer == "sgd" and self.schedule == "constant" and self.accumulation == 1
        if self.algorithm == "fedsgd" and not (usual and self.clip_norm is None):
            raise ValueError(
                "optimizer, schedule, accumulation and clip_norm belong to algorithm = 'fedavg'; under "
                "'fedsgd' clients take no step"
            )
        if self.optimizer != "sgd" and self.momentum:
            raise ValueError("momentum belongs to optimizer = 'sgd'; Adam has its own")
        return self
