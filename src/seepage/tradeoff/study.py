"""From a specification to points and cells: what each worker process builds once, and runs one cell of."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from seepage.auditor.prepare import Prepared, prepare
from seepage.auditor.run import make_header, run_cell, write_result
from seepage.defenses import DEFENSES, epsilon, uses_per_round
from seepage.errors import SpecError
from seepage.log import AttackRef, cell_id
from seepage.tradeoff.record import PointRecord, StudyFolder
from seepage.tradeoff.spec import NONE, TradeoffSpec
from seepage.tradeoff.training import train_cell


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
        for number, _ in enumerate(self.points):
            self.audited(number).defenses(0)
            self.trained(number).defenses(0)
        _, held_out = self.trained(0).draw(self.spec.training_seeds[0])
        found, wanted = 0 if held_out is None else len(held_out), self.spec.training.test_examples
        if found < wanted:
            raise SpecError(
                f"training needs {wanted} held-out examples, but the clients leave {found}: lower "
                "training.test_examples, training.clients or training.examples."
            )

    def audited(self, point: int) -> Prepared:
        """The audit of one point. It differs from the others in the clients' defense only."""
        digest = hashlib.sha256(f"{self.base.fingerprint} {self.points[point].title}".encode())
        return replace(self.base, spec=self.spec.audit(self.points[point]), fingerprint=digest.hexdigest())

    def trained(self, point: int) -> Prepared:
        """The same protocol with the training's clients, each with several batches that take turns."""
        wanted = self.spec.training
        protocol = self.spec.protocol.model_copy(
            update={"clients": wanted.clients, "rounds": self.batches_each, "fresh_batches": True}
        )
        update = {"protocol": protocol, "public_examples": wanted.test_examples}
        return replace(self.base, spec=self.spec.audit(self.points[point]).model_copy(update=update))

    @property
    def batches_each(self) -> int:
        """Batches of a client in the training; each is used every so many rounds."""
        return self.spec.training.examples // self.spec.protocol.batch_size

    @cached_property
    def fingerprint(self) -> str:
        written = self.spec.model_dump_json(exclude={"title"})
        return hashlib.sha256(f"{self.base.fingerprint} {written}".encode()).hexdigest()

    def jobs(self) -> list[Job]:
        """Every cell, point by point, so that an interrupted study has whole rows."""
        found = []
        for point in range(len(self.points)):
            found += [
                Job(kind="training", point=point, attack=0, seed=s) for s in self.spec.training_seeds
            ] + [
                Job(kind="attack", point=point, attack=a, seed=s)
                for s in self.spec.seeds
                for a in range(len(self.base.refs))
            ]
        return found

    def name(self, job: Job) -> str:
        point = self.points[job.point]
        if job.kind == "training":
            return f"{point.title}: training, seed {job.seed}"
        return f"{point.title}: {self.base.refs[job.attack].name}, seed {job.seed}"

    def is_done(self, job: Job, folder: StudyFolder) -> bool:
        key = self.points[job.point].key
        if job.kind == "training":
            return folder.training_file(key, job.seed).is_file()
        return folder.point(key).has_cell(cell_id(self.base.refs[job.attack], job.seed))

    def open_points(self, folder: StudyFolder) -> None:
        """Each point's folder is a run folder of its own."""
        for number, point in enumerate(self.points):
            folder.point(point.key).open(make_header(self.audited(number)))

    def run(self, job: Job, folder: StudyFolder) -> None:
        """Run one cell and write it."""
        key = self.points[job.point].key
        if job.kind == "training":
            prepared = self.trained(job.point)
            folder.write_training(train_cell(prepared, key, job.seed, self.spec.training.rounds))
            return
        prepared = self.audited(job.point)
        result = run_cell(prepared, self.base.refs[job.attack], job.seed)
        write_result(folder.point(key), *result, prepared.dataset.spec)

    def records(self) -> tuple[PointRecord, ...]:
        return tuple(self._record(point) for point in self.points)

    def _record(self, point: AttackRef) -> PointRecord:
        if point.name == NONE:
            return PointRecord(defense=point, description="Updates are sent as they are.", guarantee="none")
        entry = DEFENSES[point.name]
        promise = self._promise({**entry.settings, **point.params}, point.name)
        if promise is None:
            # A mechanism without its noise bounds nothing.
            return PointRecord(defense=point, description=entry.description, guarantee="heuristic")
        protects, sigma, steps, uses = promise
        return PointRecord(
            defense=point,
            description=entry.description,
            guarantee=entry.guarantee,
            formal=True,
            protects=protects,
            sigma=sigma,
            steps=steps,
            uses_per_round=uses,
            epsilon=epsilon(sigma=sigma, delta=self.spec.delta, steps=steps),
            delta=self.spec.delta,
        )

    def _promise(self, settings: dict[str, Any], name: str) -> tuple[str, float, int, int] | None:
        """Whom the noise hides, its multiplier, and how often in the training: sampling rate 1 throughout."""
        rounds, sigma = self.spec.training.rounds, float(settings.get("sigma", 0.0))
        if name == "dp_sgd" and sigma > 0:
            uses = uses_per_round(self.base.local, self.spec.protocol.batch_size)
            return "one example", sigma, -(-rounds // self.batches_each) * uses, uses
        if name == "central_dp" and sigma > 0 and settings["server_honest"]:
            return "one client", sigma, rounds, 1
        return None


def unfinished(study: Study, folder: StudyFolder) -> Sequence[Job]:
    """What a resumed study still has to do."""
    return [job for job in study.jobs() if not study.is_done(job, folder)]
