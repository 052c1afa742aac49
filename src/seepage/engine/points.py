"""The points of a grid, made ready to run: model and data are read once for all points that share them."""

from __future__ import annotations

from dataclasses import replace
from math import lcm

from seepage.core.errors import SpecError
from seepage.data import Dataset
from seepage.engine.given import hold
from seepage.engine.grid import MOST_EXAMPLES, Grid, Point, TrainingSpec
from seepage.engine.identity import CodeReader, digest
from seepage.engine.measures import with_measures
from seepage.engine.origin import made_by, trained_by
from seepage.engine.prepare import prepare, prepare_again, read_data
from seepage.engine.prepared import Prepared
from seepage.engine.promise import schedule_of
from seepage.engine.shared import LastShared
from seepage.record import BASELINE, TRAINING, AttackRef

TRAINS = "seepage.engine.training"
"""The module whose code a training comes from."""


class Points:
    """Every process that runs cells of a grid has one of these."""

    def __init__(self, grid: Grid) -> None:
        hold(grid.given)
        self.grid = grid
        self._code = CodeReader()
        self._data: dict[str, Dataset] = {}
        self._bases: dict[tuple[object, ...], Prepared] = {}
        self._ready: dict[int, Prepared] = {}
        self.shared = LastShared()

    def __getitem__(self, number: int) -> Prepared:
        """The audit of one point."""
        if number not in self._ready:
            self._ready[number] = self._prepare(number)
        return self._ready[number]

    def settle(self, number: int, prepared: Prepared) -> None:
        """The same point with its attacks chosen."""
        self._ready[number] = prepared

    def attacked_by(self, number: int, attack: AttackRef) -> Prepared:
        """The audit of one point with this attack in it, which "auto" may have chosen in another process."""
        prepared = self[number]
        if attack.name != TRAINING and attack.key not in prepared.attacks:
            self.settle(number, prepared.with_attacks([*prepared.refs, attack]))
        return self[number]

    def base(self, number: int) -> tuple[object, ...]:
        """What points with the same model and data have in common."""
        spec = self.grid.points[number].spec
        data = spec.data.model_dump_json()
        return spec.model.model_dump_json(), data, spec.device, spec.seeds[0], spec.server_seed

    def _prepare(self, number: int) -> Prepared:
        point = self.grid.points[number]
        spec, shared = point.spec, self.base(number)
        data = spec.data.model_dump_json()
        if shared in self._bases:
            prepared = prepare_again(self._bases[shared], spec)
        else:
            if data not in self._data:
                self._data[data] = read_data(spec, self.grid.data, model=self.grid.model)
            prepared = prepare(
                spec, model=self.grid.model, dataset=self._data[data], code=self._code, strict=not self._bases
            )
            self._bases[shared] = prepared
        others = [ref for ref in prepared.refs if ref.name != BASELINE]
        if others and not point.baseline:
            prepared = prepared.with_attacks(others)
        training = self._settled(point, prepared)
        if training is None:
            return prepared
        return replace(
            prepared,
            run_key=digest(prepared.run_key, training.model_dump_json()),
            training_schedule=schedule_of(prepared.spec, training),
        )

    def training(self, number: int) -> TrainingSpec:
        """What a point with a training trains on, with the number of examples settled."""
        found = self._settled(self.grid.points[number], self[number])
        assert found is not None
        return found

    def _settled(self, point: Point, prepared: Prepared) -> TrainingSpec | None:
        """As many examples for every point: whole batches of each, where they take turns."""
        wanted = point.training
        if wanted is None or isinstance(wanted.examples, int):
            return wanted
        held_out = wanted.test_examples + wanted.validated
        each = max(0, len(prepared.dataset) - held_out) // wanted.clients
        if wanted.examples is None:
            each = min(each, MOST_EXAMPLES)
        if not wanted.poisson:
            sizes = (with_measures(one.spec).protocol.batch_size for one in self.grid.points)
            each -= each % (wanted.batch_size or lcm(*sizes))
        if each < 1:
            raise SpecError(
                f"{len(prepared.dataset)} examples are too few for {wanted.clients} clients beside "
                f"{held_out} held-out ones: lower training.test_examples, training.clients or "
                "protocol.batch_size."
            )
        return wanted.model_copy(update={"examples": each})

    def trained(self, number: int) -> Prepared:
        """The same protocol with the training's clients, each with several batches that take turns, or with
        all of its examples where they are sampled."""
        wanted, audited = self.training(number), self[number]
        assert isinstance(wanted.examples, int)
        batch = wanted.batch_size or audited.spec.protocol.batch_size
        if wanted.poisson:
            batch = wanted.examples
        protocol = audited.spec.protocol.model_copy(
            update={
                "clients": wanted.clients,
                "audited": None,
                "batch_size": batch,
                "rounds": wanted.examples // batch,
                "fresh_batches": True,
                "lr": wanted.lr or audited.spec.protocol.lr,
            }
        )
        update = {"protocol": protocol, "public_examples": wanted.test_examples + wanted.validated}
        spec = audited.spec.model_copy(update=update)
        return replace(audited, spec=spec, local=protocol.local_training)

    def made_by(self, number: int, attack: AttackRef, seed: int) -> dict[str, str]:
        """What one cell comes from."""
        if attack.name == TRAINING:
            return trained_by(self.trained(number), TRAINS, seed)
        return made_by(self[number], attack, seed)

    def check(self) -> None:
        """Everything a user could have known before: settings of every defense, enough data."""
        for number in range(len(self.grid.points)):
            self.check_point(number)

    def check_point(self, number: int) -> None:
        """The same for one point."""
        point = self.grid.points[number]
        if point.training is not None:
            self._check_batches(number, point)
        self[number].check()
        if point.training is not None:
            self._check_training(number, point)

    def _check_batches(self, number: int, point: Point) -> None:
        """What a measure makes of the protocol must fit the training, which has the same data for all."""
        training, protocol = self.training(number), self[number].spec.protocol
        assert isinstance(training.examples, int)
        batch = training.batch_size or protocol.batch_size
        if training.poisson:
            self._check_sampling(point, training, 1 if training.rate else batch)
        elif training.examples % batch:
            raise SpecError(
                f"{point.title}: a client's {training.examples} training examples do not divide into batches "
                f"of {batch}: choose training.examples as a multiple of every batch size."
            )
        if training.clients < protocol.clients != point.spec.protocol.clients:
            raise SpecError(
                f"{point.title}: {protocol.clients} clients take part, but training.clients is "
                f"{training.clients}, the same for every defense: raise it."
            )

    def _check_sampling(self, point: Point, training: TrainingSpec, batch: int) -> None:
        assert isinstance(training.examples, int)
        protocol = point.spec.protocol
        if batch > training.examples:
            raise SpecError(
                f"{point.title}: a round cannot draw {batch} of a client's {training.examples} examples on "
                "average: raise training.examples."
            )
        if protocol.algorithm != "fedsgd":
            raise SpecError(
                f"{point.title}: training.sampling = 'poisson' belongs to algorithm = 'fedsgd', a round "
                "is one step."
            )

    def _check_training(self, number: int, point: Point) -> None:
        trained = self.trained(number)
        trained.defenses(0)
        _, held_out = trained.draw(point.training_seeds[0])
        found, wanted = 0 if held_out is None else len(held_out), trained.spec.public_examples
        if found < wanted:
            raise SpecError(
                f"training needs {wanted} held-out examples, but the clients leave {found}: lower "
                "training.test_examples, training.clients or training.examples."
            )
