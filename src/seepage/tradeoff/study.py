"""From a specification to points and cells: what each worker process builds once, and runs one cell of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from seepage.auditor.header import make_header
from seepage.auditor.origin import DAMAGED, again_in_words, again_key, differences, kept, made_by, trained_by
from seepage.auditor.prepare import Prepared, prepare, prepare_again
from seepage.auditor.promise import defense_records
from seepage.auditor.run import complete_cell
from seepage.auditor.spec import ProtocolSpec
from seepage.errors import LogError, SpecError
from seepage.log import AttackRef, DefenseRecord, cell_id, origin_key
from seepage.tradeoff.record import StudyFolder, training_id
from seepage.tradeoff.spec import TradeoffSpec
from seepage.tradeoff.training import train_cell

TRAINING = "seepage.tradeoff.training"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One cell: an attack, or the training, at one point under one seed. Small, for it travels."""

    kind: Literal["attack", "training"]
    point: int
    attack: int
    seed: int


class Study:
    """A checked study, ready to run: model and data are loaded once for all points."""

    def __init__(self, spec: TradeoffSpec) -> None:
        self.spec = spec
        self.points = spec.points()
        self.base: Prepared = prepare(spec.audit(self.points[0]))

    def check(self) -> None:
        """Everything a user could have known before: settings of every defense, enough data."""
        for number, point in enumerate(self.points):
            audited, trained = self.audited(number), self.trained(number)
            self._check_training(point.title, audited.spec.protocol)
            audited.check()
            trained.defenses(0)
            _, held_out = trained.draw(self.spec.training_seeds[0])
            found, wanted = 0 if held_out is None else len(held_out), self.spec.training.test_examples
            if found < wanted:
                raise SpecError(
                    f"training needs {wanted} held-out examples, but the clients leave {found}: lower "
                    "training.test_examples, training.clients or training.examples."
                )

    def _check_training(self, title: str, protocol: ProtocolSpec) -> None:
        """What a measure makes of the protocol must fit the training, which has the same data for all."""
        training = self.spec.training
        if training.examples % protocol.batch_size:
            raise SpecError(
                f"{title}: a client's {training.examples} training examples do not divide into batches of "
                f"{protocol.batch_size}: choose training.examples as a multiple of every batch size."
            )
        if training.clients < protocol.clients != self.spec.protocol.clients:
            raise SpecError(
                f"{title}: {protocol.clients} clients take part, but training.clients is {training.clients}, "
                "the same for every defense: raise it."
            )

    def audited(self, point: int) -> Prepared:
        """The audit of one point: other defenses, and attacks that know of them."""
        return prepare_again(self.base, self.spec.audit(self.points[point]))

    def refs(self, point: int) -> tuple[AttackRef, ...]:
        """The attacks of one point."""
        return self._refs[point]

    @cached_property
    def _refs(self) -> list[tuple[AttackRef, ...]]:
        return [self.audited(point).refs for point in range(len(self.points))]

    def trained(self, point: int) -> Prepared:
        """The same protocol with the training's clients, each with several batches that take turns."""
        wanted, audited = self.spec.training, self.audited(point)
        protocol = audited.spec.protocol.model_copy(
            update={
                "clients": wanted.clients,
                "rounds": wanted.examples // audited.spec.protocol.batch_size,
                "fresh_batches": True,
            }
        )
        update = {"protocol": protocol, "public_examples": wanted.test_examples}
        return replace(audited, spec=audited.spec.model_copy(update=update))

    @cached_property
    def run_key(self) -> str:
        """Which study this is: the spec, the data and the model."""
        return again_key(self.base.run_key, self.spec)

    def training_origin(self, point: int, seed: int) -> dict[str, str]:
        """What one training comes from, as `made_by` says it of an attack."""
        return trained_by(self.trained(point), TRAINING, seed)

    def training_keys(self) -> dict[str, str]:
        """By training: the key that its result must have."""
        return {
            training_id(point.key, seed): origin_key(self.training_origin(number, seed))
            for number, point in enumerate(self.points)
            for seed in self.spec.training_seeds
        }

    def jobs(self) -> list[Job]:
        """Every cell, point by point, so that an interrupted study has whole rows."""
        found = []
        for point in range(len(self.points)):
            found += [
                Job(kind="training", point=point, attack=0, seed=s) for s in self.spec.training_seeds
            ] + [
                Job(kind="attack", point=point, attack=a, seed=s)
                for s in self.spec.seeds
                for a in range(len(self.refs(point)))
            ]
        return found

    def name(self, job: Job) -> str:
        point = self.points[job.point]
        if job.kind == "training":
            return f"{point.title}: training, seed {job.seed}"
        return f"{point.title}: {self.refs(job.point)[job.attack].title}, seed {job.seed}"

    def kept(self, job: Job, folder: StudyFolder) -> tuple[bool, str]:
        """Whether the cell is done and may be served; if not, why it is run again (nothing: it never ran)."""
        point, audited = self.points[job.point].key, self.audited(job.point)
        if job.kind == "attack":
            ref = self.refs(job.point)[job.attack]
            wanted = made_by(audited, ref, job.seed)
            found, why = kept(folder.point(point), cell_id(ref, job.seed), audited.run_key, wanted)
            return found is not None, why
        try:
            training = folder.read_training(point, job.seed, self.run_key)
        except LogError:
            return False, DAMAGED
        if training is None or training.status == "failed":
            return False, ""
        changes = differences(training.made_by, self.training_origin(job.point, job.seed))
        return not changes, ", ".join(changes)

    def open_points(self, folder: StudyFolder) -> None:
        """Each point's folder is a run folder of its own."""
        for number, point in enumerate(self.points):
            folder.point(point.key).open(make_header(self.audited(number)))

    def run(self, job: Job, folder: StudyFolder) -> None:
        """Run one cell and write it."""
        key = self.points[job.point].key
        if job.kind == "training":
            prepared = self.trained(job.point)
            cell = train_cell(prepared, key, job.seed, self.spec.training.rounds)
            made = self.training_origin(job.point, job.seed)
            folder.write_training(cell.model_copy(update={"run_key": self.run_key, "made_by": made}))
            return
        prepared = self.audited(job.point)
        complete_cell(folder.point(key), prepared, self.refs(job.point)[job.attack], job.seed)

    def records(self) -> tuple[DefenseRecord, ...]:
        """Every point with its promise over the whole training."""
        return tuple(self._record(point) for point in range(len(self.points)))

    def _record(self, point: int) -> DefenseRecord:
        trained = self.trained(point)
        found = defense_records(trained.spec, trained.local, rounds=self.spec.training.rounds)
        if not found:
            return DefenseRecord(
                defense=self.points[point], description="Updates are sent as they are.", guarantee="none"
            )
        # What is outside of a mechanism only processes what it released: the promise stays.
        strongest = next((one for one in found if one.formal), found[0])
        return strongest.model_copy(update={"defense": self.points[point]})


def unfinished(study: Study, folder: StudyFolder) -> tuple[Sequence[Job], str]:
    """What a resumed study still has to do, and a sentence on what of it was done before."""
    looked_up = [(job, *study.kept(job, folder)) for job in study.jobs()]
    return [job for job, done, _ in looked_up if not done], again_in_words(why for _, _, why in looked_up)
