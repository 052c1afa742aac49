"""The verdict in plain words: the first thing a reader sees, on the page and in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from seepage.core.metric import MetricFacts
from seepage.names.frameworks import unanswered
from seepage.names.metrics import leading
from seepage.record import BASELINE, AttackSummary, AuditLog, Cell
from seepage.report.gaps import Spoiled, gaps, nothing_finished, out_of_time
from seepage.report.lead import labels_lead, lead, words_lead
from seepage.report.sampled import beyond_the_sample
from seepage.report.unchecked import hindrances, without_truth
from seepage.report.vantage import server, vantage
from seepage.report.words import NOUNS, percent, sentence, share, things, unit, with_interval

Level = Literal["high", "some", "none_shown", "claimed", "unknown"]
Outcome = Literal["leak_shown", "not_shown", "not_measured"]
OUTCOMES: dict[Level, Outcome] = {
    "high": "leak_shown",
    "some": "leak_shown",
    "none_shown": "not_shown",
    "claimed": "not_measured",
    "unknown": "not_measured",
}
"""There are three verdicts; a leak that was shown has degrees. None says that a deployment is safe."""
STANDS_OUT = 2.0
"""Wide margins (for PSNR: 2 x 3 dB) by which a single example must beat its own guess to be named."""


@dataclass(frozen=True)
class AuditVerdict:
    """A level, one headline sentence, and the sentences that say how sure it is and what it leaves open."""

    level: Level
    headline: str
    details: tuple[str, ...]
    measured: int = 0
    """Attacks that were measured."""
    first: int = 2
    """Of the details: so many are for the first screen."""

    @property
    def outcome(self) -> Outcome:
        return OUTCOMES[self.level]

    @property
    def badge(self) -> str:
        """The verdict in three words or so.

        >>> AuditVerdict("none_shown", "", (), measured=2).badge
        'Not shown by these 2 attacks'
        """
        if self.level == "none_shown":
            return f"Not shown by {'this attack' if self.measured == 1 else f'these {self.measured} attacks'}"
        return {
            "high": "Leak shown",
            "some": "Leak shown, in part",
            "claimed": "Claimed, not checked",
            "unknown": "Not measured",
        }[self.level]


@dataclass(frozen=True)
class _Finding:
    """The strongest thing one attack has shown. `rank` orders kinds from strongest to nothing."""

    kind: str
    summary: AttackSummary
    metric: MetricFacts
    count: int = 0

    @property
    def rank(self) -> tuple[int, float, bool, int, float]:
        whole = max(1, self.summary.examples)
        score = self.summary.scores.get(self.metric.name)
        mean = score.value if score else 0.0
        # at equal counts, what needs no crafted weights and fewer updates is the worse news
        effort = (not self.summary.crafted, -self.summary.rounds) if self.count else (False, 0)
        return (
            -list(_LEVELS).index(self.kind),
            self.count / whole,
            *effort,
            mean if self.metric.higher_leaks else -mean,
        )


IN_PART = {
    "exact_features": "a layer's features only",
    "ahead_features": "a layer's features only",
    "words": "words, not their places",
    "labels": "labels, not examples",
}
"""By kind of finding, where no example itself came out: what leaked, for a cell of a table."""
_LEVELS: dict[str, Level] = {
    "exact": "high",
    "far": "high",
    "exact_features": "some",
    "ahead": "some",
    "ahead_features": "some",
    "standouts": "some",
    "words": "some",
    "labels": "some",
    "nothing": "none_shown",
    "no_guess": "unknown",
    "no_number": "unknown",
}


def verdict(log: AuditLog, summaries: Sequence[AttackSummary]) -> AuditVerdict:
    """Judge a run by its strongest attack; the baseline itself is never an attack.

    - *high*: in input space, more examples are exact than in the baseline's guess, or the 95 % interval of
      the main metric's difference from the guess, on the same examples, lies beyond a wide margin (3 dB of
      PSNR, a factor sqrt(2) of an error, 0.2 of token accuracy; see `names.metrics` and `lead`).
    - *some*: that interval lies above zero; or single recovered examples beat their own guess by two wide
      margins though the mean is not shown to; or only features of a layer were rebuilt; or only words, not
      their places, or labels were inferred better than by the baseline.
    - *none_shown*: attacks were measured and none of this holds; the details name what was not tried.
    - *claimed*: there was no truth to score against, and attacks vouch for examples; see `unchecked`.
    - *unknown*: no attack finished, or none with a score that is a number and a guess to compare it with.

    With a single example there is no interval, and only a wide margin counts.
    """
    attacks = [s for s in summaries if s.attack.name != BASELINE]
    cut = out_of_time(log, attacks)
    if any(s.cells and s.claims_right is None for s in attacks):
        found, headline, details = without_truth(log, attacks)
        left = gaps(log, attacks, Spoiled(), reasons=True)
        return AuditVerdict(found, headline, (*details, *cut, *hindrances(log), *left))
    guess = next((s for s in summaries if s.attack.name == BASELINE), None)
    findings = [_judge(log, s, guess) for s in attacks if s.cells]
    measured = [finding for finding in findings if _LEVELS[finding.kind] != "unknown"]
    spoiled = Spoiled(
        *([f.summary.attack.title for f in findings if f.kind == kind] for kind in ("no_number", "no_guess"))
    )
    if not measured:
        left = gaps(log, attacks, spoiled, reasons=True)
        doubts = (*cut, *log.header.doubts, *hindrances(log))
        return AuditVerdict("unknown", nothing_finished(attacks, spoiled), (*doubts, *left))
    best = max(measured, key=lambda finding: finding.rank)
    level = _LEVELS[best.kind]
    left = gaps(log, attacks, spoiled, reasons=level == "none_shown")
    doubts = (*log.header.doubts, *hindrances(log))
    measured_on, *caveats = _caveats(log, best, guess)
    details = (*_figures(best), measured_on, *cut, *caveats, *doubts, *left)
    return AuditVerdict(level, _HEADLINES[best.kind](log, best), details, len(measured), 2 + len(cut))


def strongest(log: AuditLog, summaries: Sequence[AttackSummary]) -> list[AttackSummary]:
    """The attacks that have shown a leak, the one that the verdict names first."""
    guess = next((s for s in summaries if s.attack.name == BASELINE), None)
    attacks = [s for s in summaries if s.attack.name != BASELINE and s.cells and s.claims_right is not None]
    found = [_judge(log, summary, guess) for summary in attacks]
    shown = [one for one in found if OUTCOMES[_LEVELS[one.kind]] == "leak_shown"]
    return [one.summary for one in sorted(shown, key=lambda one: one.rank, reverse=True)]


def judged(
    log: AuditLog, summary: AttackSummary, summaries: Sequence[AttackSummary]
) -> tuple[Level, str, str]:
    """What one attack with scores has shown by itself: the degree, a headline with its figures, and what
    leaked where that is less than examples (`IN_PART`)."""
    guess = next((s for s in summaries if s.attack.name == BASELINE), None)
    found = _judge(log, summary, guess)
    if _LEVELS[found.kind] == "unknown":
        why = "its scores are no numbers" if found.kind == "no_number" else "there is no guess beside it"
        return "unknown", f"Nothing was measured, for {why}.", ""
    text = " ".join([_HEADLINES[found.kind](log, found), *_figures(found)])
    return _LEVELS[found.kind], text, IN_PART.get(found.kind, "")


def _judge(log: AuditLog, summary: AttackSummary, guess: AttackSummary | None) -> _Finding:
    metric = leading(summary.scores, log.header.input.modality)
    features = summary.space != "input"
    exact_guess = summary.baseline.get("exact")
    guessed = round(exact_guess.value * exact_guess.n) if exact_guess else 0
    if summary.exact > guessed:
        return _Finding("exact_features" if features else "exact", summary, metric, summary.exact)
    if (ahead := lead(metric, _finished(log, summary))) != "none":
        return _Finding("ahead_features" if features else ahead, summary, metric)
    if count := 0 if features else _standouts(log, summary):
        return _Finding("standouts", summary, metric, count)
    if guess is not None and words_lead(_finished(log, summary), _finished(log, guess)) != "none":
        return _Finding("words", summary, metric)
    if _labels_leak(log, summary, guess):
        return _Finding("labels", summary, metric)
    return _Finding(_why_nothing(log, summary, metric), summary, metric)


def _why_nothing(log: AuditLog, summary: AttackSummary, metric: MetricFacts) -> str:
    """NaN is below nothing, and what has no guess beside it is not below one: neither was measured."""
    score, base = summary.scores.get(metric.name), summary.baseline.get(metric.name)
    if score is None or not all(isfinite(known.value) for known in (score, base) if known is not None):
        return "no_number"
    examples = [example for cell in _finished(log, summary) for example in cell.examples]
    compared = any(metric.name in e.scores and metric.name in e.baseline for e in examples)
    return "nothing" if compared else "no_guess"


def _standouts(log: AuditLog, summary: AttackSummary) -> int:
    """Recovered examples far beyond their own guess. A mean can hide them: leakage is not uniform."""
    found = 0
    for cell in _finished(log, summary):
        for example in (e for e in cell.examples if e.recovered):
            metric = leading(example.scores, log.header.input.modality)
            value, guess = example.scores.get(metric.name), example.baseline.get(metric.name)
            if value is not None and guess is not None:
                found += metric.beats(value, guess, margins=STANDS_OUT)
    return found


def _labels_leak(log: AuditLog, summary: AttackSummary, guess: AttackSummary | None) -> bool:
    if "labels" in log.header.threat.grants or guess is None:
        return False  # given labels are no finding, and without a guess there is nothing to compare with
    return labels_lead(_finished(log, summary), _finished(log, guess)) != "none"


def _finished(log: AuditLog, summary: AttackSummary) -> Sequence[Cell]:
    return log.cells_of(summary.attack, done=True)


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


def _words(log: AuditLog, best: _Finding) -> str:
    known = percent(best.summary.scores["words_known"].value)
    return (
        f"{server(log.header, best.summary)} knows {known} of the words in the texts "
        f"{vantage(log, best.summary)}, though not their places."
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
    "words": _words,
    "labels": _labels,
    "nothing": _nothing,
}


def _figures(best: _Finding) -> list[str]:
    """The main metric beside the baseline's."""
    score = best.summary.scores.get(best.metric.name)
    base = best.summary.baseline.get(best.metric.name)
    if score is None:
        return []
    metric, name = best.metric, best.summary.attack.name
    figure = with_interval(score, metric)
    if " to " in figure:
        figure = figure.replace("(", "(95 % interval ")
    kind = "Mean " if score.n > 1 else ""
    said = sentence(f"{kind}{metric.words} of {name}: {figure}")
    if base is None:
        return [f"{said} The log holds no baseline to compare it with."]
    guess = "the mean feature" if best.summary.space != "input" else "the best guess without any update"
    return [f"{said[:-1]}, against {with_interval(base, metric)} for {guess}."]


def _caveats(log: AuditLog, best: _Finding, guess: AttackSummary | None) -> list[str]:
    """How sure, and what was not shown."""
    summary = best.summary
    count = things(log.header, summary.examples)
    said = []
    if summary.cells == 1:
        said.append(f"Measured on one batch of {count}: the interval says nothing about other batches.")
    else:
        said.append(f"Measured on {count} in {summary.cells} batches, one for each {unit(log.header)}.")
    said += beyond_the_sample(log.header, _finished(log, summary))
    labels = summary.scores.get("label_accuracy")
    if labels and best.kind != "labels" and "labels" not in log.header.threat.grants:
        base = guess.scores.get("label_accuracy") if guess else None
        beside = f"the baseline {percent(base.value)}" if base else "this log has no baseline for labels"
        said.append(f"It also infers {percent(labels.value)} of the labels ({beside}).")
    if _LEVELS[best.kind] == "none_shown":
        said.append("That is not a proof of safety: stronger attacks exist.")
    else:
        said.append("This is a lower bound: stronger attacks may recover more.")
    strange = [one.defense.name for one in log.header.defenses if unanswered(one.defense.name)]
    said += [f"Nothing here knows how to undo {name}: it was not attacked adaptively." for name in strange]
    return said
