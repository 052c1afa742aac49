"""The actions that a report lists: at most five, each measured, ranked by what it stops against its price."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seepage.core.errors import LogError
from seepage.record import AuditLog, DefenseRef, RunLog
from seepage.report.actions.wording import proof, wording
from seepage.report.words import join, percent, plural

if TYPE_CHECKING:
    from seepage.report.study.result import DefenseRow, StudyResult

ADVICE = "advice"
"""The folder inside an audit's: a study of its own, so that the record of the audit stays what it was."""
MOST = 5
HELPS = 0.1
"""Of the leakage: what stops less is named as no remedy. A definition, not a finding."""
_LITTLE = 0.01
"""Leakage of the deployment as it is, below which there is nothing to rank (as in `study.advice`)."""


@dataclass(frozen=True, kw_only=True)
class Action:
    """One change, as it was measured."""

    title: str
    how: str
    stops: str
    """What it did to the leak, in a sentence with both figures."""
    price: str
    """Of the accuracy, and of the examples where some were held back."""
    also: str
    """What else it costs."""
    proof: str
    command: str
    """Audits the deployment with this change in place."""
    setting: str
    """The line for the audit file."""
    stopped: float
    """Share of the leakage, 0 to 1."""
    kept: float | None
    """Share of the accuracy above chance; None: not measured."""

    @property
    def score(self) -> float:
        """What it stops times what it leaves of the accuracy; a price that is not known counts as half."""
        return self.stopped * (0.5 if self.kept is None else self.kept)

    @property
    def in_short(self) -> str:
        price = self.price.rstrip(".")
        return f"{self.title} (stops {percent(round(self.stopped, 3))}; {price[0].lower()}{price[1:]})"


@dataclass(frozen=True, kw_only=True)
class Actions:
    """What the report says under "What to do"."""

    listed: tuple[Action, ...]
    below: tuple[str, ...] = ()
    """Measured too, and ranked below those that are listed: each in a few words with its figures."""
    without_effect: tuple[str, ...] = ()
    not_measured: tuple[str, ...] = ()
    basis: str = ""
    """What the figures come from, in a sentence or two."""

    @property
    def none_listed(self) -> str:
        """Why nothing is listed, in a sentence or two; empty where something is."""
        if self.listed:
            return ""
        if self.below:
            return "No measured change both stops a tenth of the leak and lets this network learn."
        more = (
            "Budgets are clock time, and a busy machine gets less done in it: raise it, as in --budget 10m, "
            "and run the same command again."
        )
        if self.without_effect and self.not_measured:
            tried = len(self.without_effect)
            every = plural(tried + len(self.not_measured), "change")
            return (
                f"{tried} of {every} could be measured before the time of the budget was over, and stopped "
                f"less than a tenth of the leak; the others may help. {more}"
            )
        if self.without_effect:
            return "None of the changes that were measured on this deployment stops a tenth of the leak."
        return (
            "No change of this deployment was measured to its end, so none is listed: the time of the budget "
            f"was over before. {more}"
        )


def read_actions(log: AuditLog) -> Actions | None:
    """From the study beside an audit's log; None where there is none, or it is not of this audit."""
    folder = log.folder.path / ADVICE
    if not (folder / "log.json").is_file():
        return None
    from seepage.report.study.result import StudyResult  # needs torch, which a report without advice does not

    try:
        result = StudyResult.of(RunLog.read(folder, kind="study"))
    except LogError:
        return None
    if result.log.header.spec.get("audit") != log.header.run_key:
        return None
    return listed(result)


def listed(result: StudyResult) -> Actions:
    """From the rows of the study, of which the first is the deployment as it is."""
    plain, others = result.rows[0], result.rows[1:]
    if plain.leakage is None or plain.leakage.value < _LITTLE or _unfinished(plain):
        return Actions(listed=(), not_measured=tuple(row.point.title for row in others))
    measured = [row for row in others if row.leakage is not None and not _unfinished(row)]
    actions = [_action(result, plain, row) for row in measured]
    useful = sorted((one for one in actions if one.stopped >= HELPS), key=lambda one: -one.score)
    most = min(
        MOST, sum(one.score > 0 for one in useful)
    )  # where nothing is learnt any more, nothing is advised
    return Actions(
        listed=tuple(useful[:most]),
        below=tuple(one.in_short for one in useful[most:]),
        without_effect=tuple(one.title for one in actions if one.stopped < HELPS),
        not_measured=tuple(_title(result, row) for row in others if row not in measured),
        basis=_basis(result),
    )


def _unfinished(row: DefenseRow) -> bool:
    """An attack that leaked and was not run here may leak here too."""
    every = [one for pair in row.leaks for one in pair.both]
    return any(one.status in {"failed", "partial", "not_run"} for one in every)


def _action(result: StudyResult, plain: DefenseRow, row: DefenseRow) -> Action:
    words = wording(row.point, _batch_size(result))
    assert plain.leakage is not None and row.leakage is not None
    stopped = min(1.0, max(0.0, 1 - row.leakage.value / plain.leakage.value))
    kept = _kept(result, plain, row)
    command = str(result.log.header.spec.get("command") or "seepage audit audit.toml")
    return Action(
        title=words.title,
        how=words.how,
        stops=_stops(plain, row, stopped),
        price=_price(plain, row, kept),
        also=words.also,
        proof=proof(row.point),
        command=f"{command} --with {shlex.quote(as_option(row.point.defense))}",
        setting=f"defenses = [{as_toml(row.point.defense)}]",
        stopped=stopped,
        kept=kept,
    )


def _title(result: StudyResult, row: DefenseRow) -> str:
    return wording(row.point, _batch_size(result)).title


def _batch_size(result: StudyResult) -> int:
    return int((result.first.spec.get("protocol") or {}).get("batch_size") or 1)


def _stops(plain: DefenseRow, row: DefenseRow, stopped: float) -> str:
    said = f"Stops {percent(round(stopped, 3))} of what these attacks got"
    if plain.exact is not None and row.exact is not None and plain.exact.value > 0:
        return f"{said}: exact copies fall from {percent(plain.exact)} to {percent(row.exact)}."
    return f"{said}: the leakage falls from {percent(plain.leakage)} to {percent(row.leakage)}."


def _kept(result: StudyResult, plain: DefenseRow, row: DefenseRow) -> float | None:
    """None where one of the two is not known, or where the short training learns nothing by itself."""
    from seepage.report.study.learned import chance_of, learned

    classes = result.first.input.num_classes
    chance = chance_of(plain, classes)
    if plain.accuracy is None or row.accuracy is None or not learned(plain, classes):
        return None
    return min(1.0, max(0.0, (row.accuracy.value - chance) / (plain.accuracy.value - chance)))


def _price(plain: DefenseRow, row: DefenseRow, kept: float | None) -> str:
    said = "The price in accuracy was not measured"
    if kept is not None:
        said = f"Accuracy {percent(row.accuracy)} instead of {percent(plain.accuracy)} after a short training"
    if row.held_back is not None:
        said += f"; {percent(row.held_back)} of the examples of that training were left out of the updates"
    return f"{said}."


def _basis(result: StudyResult) -> str:
    header, spec = result.first, result.log.header.spec
    names = dict.fromkeys(one.attack.plain.name for one in result.rows[0].leaks)
    seeds = plural(len(header.seeds), "seed")
    said = f"Each was attacked by {join(list(names))} on {seeds}"
    if all(row.accuracy is None for row in result.rows):
        return f"{said}. There was no time, or too little data, for a training."
    training = spec["training"]
    return (
        f"{said}, and trained for {training['rounds']} rounds with {training['clients']} clients "
        f"({plural(len(header.training_seeds), 'seed')}, {training['test_examples']} test examples): short "
        "measurements, to be confirmed by the command."
    )


def as_option(ref: DefenseRef) -> str:
    """As `--with` takes it.

    >>> as_option(DefenseRef(name="dp_sgd", params={"clip": 1.0, "sigma": 2.5}))
    'dp_sgd:clip=1.0,sigma=2.5'
    """
    settings = ",".join(f"{name}={value}" for name, value in ref.params.items())
    return f"{ref.name}:{settings}" if settings else ref.name


def as_toml(ref: DefenseRef) -> str:
    """As an audit file has it.

    >>> as_toml(DefenseRef(name="secure_sum", params={"clients": 8})), as_toml(DefenseRef(name="sign"))
    ('{name = "secure_sum", clients = 8}', '"sign"')
    """
    if not ref.params:
        return f'"{ref.name}"'
    return f'{{name = "{ref.name}", {_settings(ref.params)}}}'


def _settings(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in params.items())
