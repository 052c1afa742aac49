"""Which attacks an audit runs: those that it names or, for `auto`, all that fit and are in time."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from seepage.attacks import ATTACKS
from seepage.engine.fits import not_listed, why_not
from seepage.engine.identity import version
from seepage.engine.planned import planned_refs
from seepage.engine.points import Points
from seepage.engine.prepared import Prepared
from seepage.engine.rehearsal import Forecast, Rehearsal, RunCell, updates_of
from seepage.engine.shared import Shared
from seepage.engine.spec import AUTO, DEFAULT_BUDGET, AttackSpec
from seepage.record import ADAPTIVE, BASELINE, AttackRef, NotTried, RunFolder

SEARCHES_IN_ORDER = (
    "lamp",
    "tag",
    "tableak",
    "feature_inversion",
    "inverting_gradients",
    "see_through_gradients",
    "idlg",
    "deep_leakage",
)
"""Which search gets its time first: the one made for the data. Others come after them."""
READS_FIRST = ("exact_extraction",)
"""Attacks that search only for what reading leaves. They are chosen among the direct ones, and where they
would take too long they get the time that is left."""
LEAST_SHARE = 0.1
"""Of a search's steps: with fewer it is left out. On digits (MLP, four images, two seeds) inverting_gradients
reaches 61 dB with its 1000 steps, 30 with 100 and 19 with 30, where guessing has 16."""
_REHEARSED = 0.2
"""Of the budget: what the rehearsals of all attacks may take before they reckon instead of trying."""
_TRUST = 2.0
"""An estimate may be wrong by this factor: a search with less room than that gets a time limit."""


def line_up(
    prepared: Prepared, folder: RunFolder, run_cell: RunCell, *, reserved: float = 0.0, times: int = 1
) -> Prepared:
    """The audit with its attacks settled, and with the reason for every one that is left out.

    reserved: the share of the budget that is not theirs. times: that each attack is run, on every seed.

    A run that was begun keeps the attacks in its log: timing them again could lead to others.
    """
    if folder.header_file.exists():
        begun = folder.read_header().points[0]
        if begun.run_key != prepared.run_key:
            return prepared  # the folder is another audit's, which it says itself when it is opened
        if begun.packages.get("seepage") == version("seepage"):  # another one may know other attacks
            return prepared.with_attacks(
                begun.attacks, not_tried=begun.not_tried, expected_seconds=begun.expected_seconds
            )
    wanted = prepared.spec.attacks
    if wanted == AUTO:
        return _chosen(prepared, run_cell, reserved, times)
    return _named(prepared, wanted, run_cell, reserved)


STUDY_BUDGET = 600.0
"""Seconds for a study whose attacks are auto and that has no budget: what is left to attacks goes by it."""
_FOR_ATTACKS = 0.5
"""Of a study's budget; trainings take the rest."""


def line_up_study(points: Points, folder: RunFolder, run_cell: RunCell) -> None:
    """The attacks of a study: those that fit the deployment without a defense, for every point."""
    first, count = points[0], len(points.grid.points)
    if first.spec.attacks != AUTO:
        return
    total = STUDY_BUDGET if points.grid.budget is None else points.grid.budget
    limited = replace(first, spec=first.spec.model_copy(update={"budget": total}))
    # at every point, and once more by the twin that knows the defense
    chosen = line_up(limited, folder, run_cell, reserved=1 - _FOR_ATTACKS, times=2 * count)
    plain = [ref for ref in chosen.refs if ref.name != BASELINE]
    wanted = [AttackSpec(name=ref.name, options=ref.params) for ref in plain]
    for number in range(count):
        prepared = points[number]
        refs = planned_refs(wanted, prepared.spec)
        points.settle(number, prepared.with_attacks(refs, not_tried=chosen.not_tried))


@dataclass
class _Purse:
    """The budget of an audit: what is spent already, and what is promised to attacks."""

    seconds: float
    cells: int
    """Runs of one attack: seeds, twice as many where each one has an adaptive twin."""
    started: float
    promised: float = 0.0

    @property
    def left_for_a_cell(self) -> float:
        return (self.seconds - (time.perf_counter() - self.started) - self.promised) / self.cells

    def promise(self, seconds_of_a_cell: float) -> None:
        self.promised += self.cells * seconds_of_a_cell


def _chosen(prepared: Prepared, run_cell: RunCell, reserved: float, times: int) -> Prepared:
    """auto: direct attacks, the cheapest first; then searches, each with the time that is left."""
    names = [name for name in ATTACKS if name not in (BASELINE, ADAPTIVE)]
    shared = Shared(prepared, prepared.spec.seeds[0])
    left_out = {name: why for name in names if (why := why_not(shared, name)) is not None}
    fitting = [name for name in names if name not in left_out]
    purse, rehearsal, around = _begin(prepared, run_cell, len(fitting), reserved, times)
    forecasts: dict[str, Forecast] = {}
    for name in fitting:
        if not searches(name) and purse.left_for_a_cell <= around:
            left_out[name] = _over_budget(name, None, purse)
        elif not searches(name):
            forecasts[name] = rehearsal.whole(AttackRef(name=name))
    chosen: dict[str, tuple[AttackSpec, float]] = {}
    for name, forecast in sorted(forecasts.items(), key=lambda item: item[1].seconds):
        if forecast.reason:
            left_out[name] = NotTried(name=name, why="does_not_fit", reason=forecast.reason)
        elif forecast.seconds <= (left := purse.left_for_a_cell) or (name in READS_FIRST and left > around):
            chosen[name] = _within(prepared, AttackSpec(name=name), forecast.seconds, purse, around)
            purse.promise(chosen[name][1])
        else:
            left_out[name] = _over_budget(name, forecast, purse)
    for name in sorted((name for name in fitting if searches(name)), key=_rank):
        if purse.left_for_a_cell <= around:
            left_out[name] = _over_budget(name, None, purse)
            continue
        forecast = rehearsal.search(AttackRef(name=name), around=around)
        if forecast.reason:
            left_out[name] = NotTried(name=name, why="does_not_fit", reason=forecast.reason)
        elif forecast.share_of_steps(purse.left_for_a_cell) < LEAST_SHARE:
            left_out[name] = _over_budget(name, forecast, purse)
        else:
            chosen[name] = _limited(prepared, AttackSpec(name=name), forecast, purse.left_for_a_cell, around)
            purse.promise(chosen[name][1])
    return _settled(prepared, list(chosen.values()), [left_out[name] for name in names if name in left_out])


def _named(prepared: Prepared, wanted: Sequence[AttackSpec], run_cell: RunCell, reserved: float) -> Prepared:
    """All that the audit names; with a budget, searches share what the others leave."""
    listed = {ref.plain.name for ref in prepared.refs} | {ADAPTIVE}
    shared = Shared(prepared, prepared.spec.seeds[0])
    not_tried = [why_not(shared, name) or not_listed(name) for name in ATTACKS if name not in listed]
    open_ended = [a for a in wanted if searches(a.name) and "budget" not in a.options]
    readers = [a for a in wanted if a.name in READS_FIRST and "budget" not in a.options]
    if prepared.spec.budget is None or not (open_ended or readers):
        return prepared.with_attacks(prepared.refs, not_tried=not_tried)
    purse, rehearsal, around = _begin(prepared, run_cell, len(wanted), reserved)
    settled: dict[int, tuple[AttackSpec, float]] = {}
    for number, attack in enumerate(wanted):
        if attack not in open_ended:
            own = float(attack.options.get("budget", 0.0)) * updates_of(prepared)
            seconds = own or rehearsal.whole(AttackRef(name=attack.name, params=attack.options)).seconds
            settled[number] = attack, seconds
            if attack in readers:
                settled[number] = _within(prepared, attack, seconds, purse, around)
            purse.promise(settled[number][1])
    least = LEAST_SHARE * purse.seconds / purse.cells
    for number, attack in enumerate(wanted):
        if attack in open_ended:
            waiting = len(wanted) - len(settled)
            forecast = rehearsal.search(AttackRef(name=attack.name, params=attack.options), around=around)
            room = max(purse.left_for_a_cell, least) / waiting
            settled[number] = _limited(prepared, attack, forecast, room, around)
            purse.promise(settled[number][1])
    return _settled(prepared, [settled[number] for number in range(len(wanted))], not_tried)


def _begin(
    prepared: Prepared, run_cell: RunCell, attacks: int, reserved: float, times: int = 1
) -> tuple[_Purse, Rehearsal, float]:
    """The purse less the baseline, and the seconds that go into a cell besides the attack."""
    spec = prepared.spec
    seconds = (1 - reserved) * (DEFAULT_BUDGET if spec.budget is None else spec.budget)
    twins = len(planned_refs([AttackSpec(name="analytic_extraction")], spec)) > 2
    purse = _Purse(seconds, times * len(spec.seeds) * (2 if twins else 1), time.perf_counter())
    rehearsal = Rehearsal(prepared, run_cell, limit=_REHEARSED * seconds / max(1, attacks))
    baseline = AttackRef(name=BASELINE)
    rehearsal.warm_up(baseline)
    around = rehearsal.whole(baseline).seconds
    purse.promise(around)
    return purse, rehearsal, around


def _limited(
    prepared: Prepared, attack: AttackSpec, forecast: Forecast, room: float, around: float
) -> tuple[AttackSpec, float]:
    """The search, with a time limit unless there is room for all its steps at twice their time."""
    if _TRUST * forecast.seconds <= room or not forecast.steps:
        return attack, forecast.seconds
    limited, _ = _cut(prepared, attack, room, around)
    return limited, min(forecast.seconds, room)


def _within(
    prepared: Prepared, attack: AttackSpec, seconds: float, purse: _Purse, around: float
) -> tuple[AttackSpec, float]:
    """What reads first and then searches: as it is if there is time for it, else cut."""
    if seconds <= purse.left_for_a_cell:
        return attack, seconds
    room = max(purse.left_for_a_cell, LEAST_SHARE * purse.seconds / purse.cells)
    return _cut(prepared, attack, room, around)


def _cut(prepared: Prepared, attack: AttackSpec, room: float, around: float) -> tuple[AttackSpec, float]:
    """The attack with a time limit that fills the room."""
    each = _two_digits(max(room - around, 0.0) / updates_of(prepared))
    return attack.model_copy(update={"options": {**attack.options, "budget": each}}), room


def _two_digits(seconds: float) -> float:
    """Rounded down, for a name that can be read.

    >>> _two_digits(12.99), _two_digits(0.1278)
    (12.0, 0.12)
    """
    if seconds <= 0:
        return 0.01
    unit = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return round(math.floor(seconds / unit) * unit, 12)


def _settled(
    prepared: Prepared, chosen: Sequence[tuple[AttackSpec, float]], not_tried: Sequence[NotTried]
) -> Prepared:
    refs = planned_refs([attack for attack, _ in chosen], prepared.spec)
    expected = {(attack.name, str(attack.options)): seconds for attack, seconds in chosen}
    return prepared.with_attacks(
        refs,
        not_tried=not_tried,
        expected_seconds={
            ref.key: float(f"{expected[found]:.3g}")
            for ref in refs
            if (found := (ref.plain.name, str(ref.plain.params))) in expected
        },
    )


def searches(name: str) -> bool:
    """It can be told how long to take, and does nothing but search."""
    limited = name in ATTACKS and "budget" in inspect.signature(ATTACKS[name]).parameters
    return limited and name not in READS_FIRST


def _rank(name: str) -> int:
    return SEARCHES_IN_ORDER.index(name) if name in SEARCHES_IN_ORDER else len(SEARCHES_IN_ORDER)


def _over_budget(name: str, forecast: Forecast | None, purse: _Purse) -> NotTried:
    """With the budget that would do, where it is known."""
    if forecast is None:
        reason = f"no time was left of {purse.seconds:.0f} s: raise the budget (seepage audit --budget 10m)."
        return NotTried(name=name, why="over_budget", reason=reason)
    short = purse.cells * (forecast.seconds - purse.left_for_a_cell)
    enough = math.ceil(_TRUST * (purse.seconds + short) / 60)
    left = max(0.0, purse.cells * purse.left_for_a_cell)
    reason = (
        f"it takes about {purse.cells * forecast.seconds:.0f} s, and of {purse.seconds:.0f} s {left:.0f} s "
        f"were left: seepage audit --budget {enough}m has room for it."
    )
    return NotTried(name=name, why="over_budget", reason=reason)
