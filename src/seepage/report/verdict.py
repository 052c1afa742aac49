"""The verdict in plain words: the first thing a reader sees, on the page and in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from seepage.log import BASELINE, AttackSummary, AuditLog, Cell, Estimate
from seepage.report.gaps import gaps, nothing_finished
from seepage.report.lead import labels_lead, lead
from seepage.report.measures import Measure, main_measure, summary_measure
from seepage.report.vantage import server, vantage
from seepage.report.words import NOUNS, percent, plural, sentence, share, things

Level = Literal["high", "some", "none_shown", "unknown"]
Outcome = Literal["leak_shown", "not_shown", "not_measured"]
OUTCOMES: dict[Level, Outcome] = {
    "high": "leak_shown",
    "some": "leak_shown",
    "none_shown": "not_shown",
    "unknown": "not_measured",
}
"""There are three verdicts; a leak that was shown has degrees. None says that a deployment is safe."""
STANDS_OUT = 2.0
"""Wide margins (for PSNR: 2 x 3 dB) by which a single example must beat its own guess to be named."""


@dataclass(frozen=True)
class Verdict:
    """A level, one headline sentence, and the sentences that say how sure it is and what it leaves open."""

    level: Level
    headline: str
    details: tuple[str, ...]
    measured: int = 0
    """Attacks that were measured."""

    @property
    def outcome(self) -> Outcome:
        return OUTCOMES[self.level]

    @property
    def badge(self) -> str:
        """The verdict in three words or so.

        >>> Verdict("none_shown", "", (), measured=2).badge
        'Not shown by these 2 attacks'
        """
        if self.level == "none_shown":
            return f"Not shown by {'this attack' if self.measured == 1 else f'these {self.measured} attacks'}"
        return {"high": "Leak shown", "some": "Leak shown, in part", "unknown": "Not measured"}[self.level]


@dataclass(frozen=True)
class _Finding:
    """The strongest thing one attack has shown. `rank` orders kinds from strongest to nothing."""

    kind: str
    summary: AttackSummary
    measure: Measure
    count: int = 0

    @property
    def rank(self) -> tuple[int, float, bool, int, float]:
        whole = max(1, self.summary.examples)
        score = self.summary.scores.get(self.measure.key)
        mean = score.value if score else 0.0
        # at equal counts, what needs no crafted weights and fewer updates is the worse news
        effort = (not self.summary.crafted, -self.summary.rounds) if self.count else (False, 0)
        return (
            -list(_LEVELS).index(self.kind),
            self.count / whole,
            *effort,
            mean if self.measure.higher_leaks else -mean,
        )


_LEVELS: dict[str, Level] = {
    "exact": "high",
    "far": "high",
    "exact_features": "some",
    "ahead": "some",
    "ahead_features": "some",
    "standouts": "some",
    "labels": "some",
    "nothing": "none_shown",
    "no_number": "unknown",
}


def verdict(log: AuditLog, summaries: Sequence[AttackSummary]) -> Verdict:
    """Judge a run by its strongest attack; the baseline itself is never an attack.

    - *high*: in input space, more examples are exact than in the baseline's guess, or the 95 % interval of
      the main metric's difference from the guess, on the same examples, lies beyond a wide margin (3 dB of
      PSNR, a factor sqrt(2) of an error, 0.2 of token accuracy; see `measures.MEASURES` and `lead`).
    - *some*: that interval lies above zero; or single recovered examples beat their own guess by two wide
      margins though the mean is not shown to; or only features of a layer were rebuilt; or only labels were
      inferred better than by the baseline.
    - *none_shown*: attacks were measured and none of this holds; the details name what was not tried.
    - *unknown*: no attack finished, or none with a score that is a number.

    With a single example there is no interval, and only a wide margin counts.
    """
    attacks = [s for s in summaries if s.attack.name != BASELINE]
    guess = next((s for s in summaries if s.attack.name == BASELINE), None)
    findings = [_judge(log, s, guess) for s in attacks if s.cells]
    measured = [finding for finding in findings if finding.kind != "no_number"]
    spoiled = [finding.summary.attack.title for finding in findings if finding.kind == "no_number"]
    if not measured:
        return Verdict("unknown", nothing_finished(attacks), tuple(gaps(log, attacks, spoiled, reasons=True)))
    best = max(measured, key=lambda finding: finding.rank)
    level = _LEVELS[best.kind]
    left = gaps(log, attacks, spoiled, reasons=level == "none_shown")
    details = (*_figures(log, best), *_caveats(log, best, guess), *left)
    return Verdict(level, _HEADLINES[best.kind](log, best), details, len(measured))


def _judge(log: AuditLog, summary: AttackSummary, guess: AttackSummary | None) -> _Finding:
    measure = summary_measure(log.header, summary)
    features = summary.space != "input"
    exact_guess = summary.baseline.get("exact")
    guessed = round(exact_guess.value * exact_guess.n) if exact_guess else 0
    if summary.exact > guessed:
        return _Finding("exact_features" if features else "exact", summary, measure, summary.exact)
    if (ahead := lead(measure, _finished(log, summary))) != "none":
        return _Finding("ahead_features" if features else ahead, summary, measure)
    if count := 0 if features else _standouts(log, summary):
        return _Finding("standouts", summary, measure, count)
    if _labels_leak(log, summary, guess):
        return _Finding("labels", summary, measure)
    # NaN is below nothing: what has no number was not measured
    score, base = summary.scores.get(measure.key), summary.baseline.get(measure.key)
    numbers = [estimate for estimate in (score, base) if estimate is not None]
    known = score is not None and all(_is_number(estimate) for estimate in numbers)
    return _Finding("nothing" if known else "no_number", summary, measure)


def _is_number(estimate: Estimate) -> bool:
    return isfinite(estimate.value)


def _standouts(log: AuditLog, summary: AttackSummary) -> int:
    """Recovered examples far beyond their own guess. A mean can hide them: leakage is not uniform."""
    found = 0
    for cell in _finished(log, summary):
        for example in (e for e in cell.examples if e.recovered):
            measure = main_measure(log.header, cell.space, example.scores)
            value, guess = example.scores.get(measure.key), example.baseline.get(measure.key)
            if value is not None and guess is not None:
                found += measure.beats(value, guess, margins=STANDS_OUT)
    return found


def _labels_leak(log: AuditLog, summary: AttackSummary, guess: AttackSummary | None) -> bool:
    if "labels" in log.header.threat.grants or guess is None:
        return False  # given labels are no finding, and without a guess there is nothing to compare with
    return labels_lead(_finished(log, summary), _finished(log, guess)) != "none"


def _finished(log: AuditLog, summary: AttackSummary) -> list[Cell]:
    return list(log.cells_where(lambda c: c.attack == summary.attack and c.status == "done"))


def _exact(log: AuditLog, best: _Finding) -> str:
    part = share(log.header, best.count, best.summary.examples)
    return f"{server(log.header, best.summary)} recovers {part} exactly {vantage(log, best.summary)}."


def _ahead(log: AuditLog, best: _Finding) -> str:
    one, several = NOUNS[log.header.input.modality]
    how = "far better" if best.kind == "far" else "better"
    who, where = server(log.header, best.summary), vantage(log, best.summary)
    if best.summary.examples == 1:
        return f"{who} rebuilds the {one} {how} than guessing {where}."
    return f"On average, {who[0].lower()}{who[1:]} rebuilds the {several} {how} than guessing {where}."


def _features(log: AuditLog, best: _Finding) -> str:
    several = NOUNS[log.header.input.modality][best.summary.examples != 1]
    what = f"the features that enter layer '{best.summary.space}'"
    how = "better than guessing"
    if best.kind == "exact_features":
        how = f"exactly for {share(log.header, best.count, best.summary.examples)}"
    where = vantage(log, best.summary)
    selves = "itself" if best.summary.examples == 1 else "themselves"
    return (
        f"{server(log.header, best.summary)} rebuilds {what} {how} {where}, but not the {several} {selves}."
    )


def _standout(log: AuditLog, best: _Finding) -> str:
    part = share(log.header, best.count, best.summary.examples)
    where = vantage(log, best.summary)
    return (
        f"{server(log.header, best.summary)} rebuilds {part} far better than guessing {where}, "
        "though on average it is not shown to do better than the guess."
    )


def _labels(log: AuditLog, best: _Finding) -> str:
    accuracy = percent(best.summary.scores["label_accuracy"].value)
    one = NOUNS[log.header.input.modality][0]
    return (
        f"{server(log.header, best.summary)} infers {accuracy} of the labels {vantage(log, best.summary)}, "
        f"but recovers no {one} beyond the baseline guess."
    )


def _nothing(log: AuditLog, best: _Finding) -> str:
    what = "anything"
    if "label_accuracy" in best.summary.scores:
        what = f"any {NOUNS[log.header.input.modality][0]}"
    return f"No attack run here recovered {what} beyond the baseline guess."


_HEADLINES: dict[str, Callable[[AuditLog, _Finding], str]] = {
    "exact": _exact,
    "far": _ahead,
    "exact_features": _features,
    "ahead": _ahead,
    "ahead_features": _features,
    "standouts": _standout,
    "labels": _labels,
    "nothing": _nothing,
}


def _figures(log: AuditLog, best: _Finding) -> list[str]:
    """The main metric beside the baseline's."""
    score = best.summary.scores.get(best.measure.key)
    base = best.summary.baseline.get(best.measure.key)
    if score is None:
        return []
    measure, name = best.measure, best.summary.attack.name
    ends = measure.range_text(score)
    interval = f" ({'95 % interval ' if ' to ' in ends else ''}{ends})" if score.n > 1 else ""
    kind = "Mean " if score.n > 1 else ""
    text = f"{kind}{measure.words} of {name}: {measure.with_unit(score.value)}{interval}"
    if base is None:
        return [f"{sentence(text)} The log holds no baseline to compare it with."]
    guess = "the mean feature" if best.summary.space != "input" else "the best guess without any update"
    base_range = f" ({measure.range_text(base)})" if base.n > 1 else ""
    return [f"{sentence(text)[:-1]}, against {measure.with_unit(base.value)}{base_range} for {guess}."]


def _caveats(log: AuditLog, best: _Finding, guess: AttackSummary | None) -> list[str]:
    """How sure, and what was not shown."""
    summary = best.summary
    count = things(log.header, summary.examples)
    said = []
    if summary.cells == 1:
        said.append(f"Measured on one batch of {count}: the interval says nothing about other batches.")
    else:
        said.append(f"Measured on {count} in {plural(summary.cells, 'batch', 'batches')}, one for each seed.")
    labels = summary.scores.get("label_accuracy")
    if labels and best.kind != "labels" and "labels" not in log.header.threat.grants:
        base = guess.scores.get("label_accuracy") if guess else None
        beside = f"the baseline {percent(base.value)}" if base else "this log has no baseline for labels"
        said.append(f"It also infers {percent(labels.value)} of the labels ({beside}).")
    if _LEVELS[best.kind] == "none_shown":
        said.append("That is not a proof of safety: stronger attacks exist.")
    else:
        said.append("This is a lower bound: stronger attacks may recover more.")
    return said
