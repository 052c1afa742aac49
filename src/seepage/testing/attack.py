"""`check_attack`: what every attack of this package is held to."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from seepage.attacks import ATTACKS, Attack
from seepage.core.errors import DataError, NotApplicable, SeepageError
from seepage.core.settings import construct
from seepage.core.types import INPUT_SPACE, Exchange, Grant, Knowledge, Reconstruction
from seepage.engine.given import take
from seepage.engine.grid import Grid
from seepage.engine.isolation.attack import IsolatedAttack
from seepage.engine.run import run_grid
from seepage.engine.spec import parse_spec
from seepage.names.metrics import leading
from seepage.protocol import Played
from seepage.record import AttackSummary, summarise
from seepage.testing.failed import CheckFailed, check_settings, copied, in_words, must, same
from seepage.testing.setting import Setting, answered, grants

_FIELDS = ("values", "claimed", "confidence", "support", "source", "label_counts", "words")


def check_attack(
    attack: Any,
    *,
    model: Any = None,
    data: Any = None,
    batch_size: int = 1,
    beats_guess: bool = True,
    **settings: Any,
) -> AttackSummary:
    """Check an attack of your own, and return its figures in a small audit.

    It leaves models and updates as they are, gives the same answer for the same seed, in a process that never
    held the clients' data as well, and after that data is wiped; it copes with updates that say nothing; it
    is at least as good as the best guess without any update.

    attack: an `Attack`, a class or function that builds one from `settings`, or a name.
    model, data, batch_size: what it can work on, as in `seepage.audit`; by default a small dense network and
        random pictures, each client with one.
    beats_guess: ask for the last of these. Leave it out only for an attack that is not about examples.

    >>> from seepage.attacks.reading.analytic_extraction import AnalyticExtraction
    >>> check_attack(AnalyticExtraction()).scores["exact"].value
    1.0
    """
    own = _built(attack, settings)
    setting = Setting.of(model, data, batch_size)
    known = setting.known(own)
    with in_words("the attack"):
        try:
            played = setting.played(own, known)
        except NotApplicable as reason:
            raise CheckFailed(
                f"the attack does not work on what it is checked on ({reason}): give check_attack a model, "
                "data and a batch_size that it is for."
            ) from None
        before = [_state(exchange) for exchange in played.exchanges]
        result = answered(own, played, known)
    _check_result(result, known)
    unchanged = all(same(old, _state(one)) for old, one in zip(before, played.exchanges, strict=True))
    must(unchanged, "the attack changes a model or an update that it was given: work on copies (`.clone()`).")
    _check_repeats(own, setting, played, known, result)
    _check_poor_updates(own, played, known)  # before what starts a process
    _check_isolated(own, setting, known, result)
    _check_truth(own, played, known, result)
    return _audited(own, setting, model, batch_size, beats_guess=beats_guess)


def _built(attack: Any, settings: dict[str, Any]) -> Attack:
    given: Any = ATTACKS.find(attack) if isinstance(attack, str) else attack
    check_settings(type(given) if isinstance(given, Attack) else given, "the attack")
    with in_words("the attack"):
        build = given if isinstance(given, Attack) else construct(given, settings, "the attack")
    must(isinstance(build, Attack), f"this is a {type(build).__name__}: derive it from seepage's Attack.")
    must(
        type(build).run is Attack.run and type(build).next_model is Attack.next_model,
        "the attack overrides run or next_model, where updates and answers are validated: write reconstruct "
        "and craft instead.",
    )
    unknown = [grant for grant in build.requires if grant not in set(Grant)]
    must(
        not unknown, f"requires names {unknown}, which no threat model grants: use seepage.core.types.Grant."
    )
    return build


def _state(exchange: Exchange) -> dict[str, torch.Tensor]:
    sent = {f"update {name}": tensor for name, tensor in exchange.update.tensors.items()}
    return copied({**exchange.broadcast.model.state_dict(), **sent})


def _check_result(result: Any, known: Knowledge) -> None:
    must(
        isinstance(result, Reconstruction),
        f"reconstruct returns a {type(result).__name__}: return a Reconstruction.",
    )
    found, wanted = tuple(result.values.shape[1:]), tuple(known.input.shape)
    must(
        result.space != INPUT_SPACE or found == wanted,
        f"the attack's candidates have shape {found}, but an example has {wanted}: reshape them, or say in "
        "`space` which layer's inputs they are.",
    )


def _equal(one: Reconstruction, other: Reconstruction) -> bool:
    def agree(field: str) -> bool:
        a, b = getattr(one, field), getattr(other, field)
        return a is b if a is None or b is None else torch.equal(a, b)

    return (one.space, one.complete) == (other.space, other.complete) and all(map(agree, _FIELDS))


def _check_repeats(
    attack: Attack, setting: Setting, played: Played, known: Knowledge, result: Reconstruction
) -> None:
    with in_words("the attack, run again,"):
        again = answered(attack, played, known)
        anew = answered(attack, setting.played(attack, known), known)
    must(
        _equal(result, again) and _equal(result, anew),
        "the attack gives another answer to the same updates the second time: draw all that is random from a "
        "generator seeded with known.seed, and keep nothing from one run to the next.",
    )


def _check_isolated(attack: Attack, setting: Setting, known: Knowledge, result: Reconstruction) -> None:
    plain, _ = take({"attacks": [attack]})
    with _apart(plain["attacks"][0]) as alone:
        try:
            there = answered(alone, setting.played(alone, known), known)
        except SeepageError as error:
            raise CheckFailed(
                "the attack cannot do without something that a server does not have: in a process that never "
                f"held the clients' data it fails ({error})"
            ) from None
    must(
        _equal(result, there),
        "the attack gives another answer in a process that never held the clients' data: it takes something "
        "from elsewhere than the exchanges and the knowledge that it is given; use these alone.",
    )


@contextlib.contextmanager
def _apart(name: str) -> Iterator[IsolatedAttack]:
    with in_words("the attack, sent to a process of its own,"):
        alone = IsolatedAttack(name, {})
    try:
        yield alone
    finally:
        alone.close()


def _check_truth(attack: Attack, played: Played, known: Knowledge, result: Reconstruction) -> None:
    played.truth.inputs.zero_()
    played.truth.labels.zero_()
    with in_words("the attack, after the clients' data was wiped,"):
        after = answered(attack, played, known)
    must(
        _equal(result, after),
        "the attack gives another answer after the clients' data was wiped from memory: it looks at the "
        "truth; use the exchanges and the knowledge alone.",
    )


def _check_poor_updates(attack: Attack, played: Played, known: Knowledge) -> None:
    """An update of zeros, one without its number of examples, and no update at all."""
    first = played.exchanges[0]
    zeros = {name: torch.zeros_like(tensor) for name, tensor in first.update.tensors.items()}
    poor = {"that is zero everywhere": replace(first.update, tensors=zeros)}
    if Grant.BATCH_SIZE not in attack.requires:
        poor["of an unknown number of examples"] = replace(first.update, num_examples=None)
    for what, update in poor.items():
        one = [replace(exchange, update=update) for exchange in played.exchanges]
        with in_words(f"the attack, on an update {what},"), contextlib.suppress(SeepageError):
            torch.manual_seed(known.seed)
            attack.run(one, known)
    try:
        attack.run([], known)
    except DataError:
        return
    raise CheckFailed("the attack answers without any update: leave `run` as it is.")


def _audited(
    attack: Attack, setting: Setting, model: Any, batch_size: int, *, beats_guess: bool
) -> AttackSummary:
    wanted = {
        "model": model if isinstance(model, str) else "model",
        "data": "data",
        "attacks": [attack],
        "threat": {"base": "malicious_server", "grant": grants(attack)},
        "protocol": {"batch_size": batch_size},
        "seeds": [0, 1],
        "public_examples": 16,
        "device": "cpu",
    }
    plain, given = take(wanted)
    objects = {"model": setting.model, "data": setting.dataset, "given": given}
    with tempfile.TemporaryDirectory() as folder, in_words("the attack, in an audit,"):
        grid = Grid.of_audit(parse_spec(plain), **objects)
        log = run_grid(grid, out=folder, engine="here").point()
    (found,) = [one for one in summarise(log) if one.attack.name == plain["attacks"][0]]
    must(found.status == "done", f"the attack fails in an audit ({found.reason}).")
    if beats_guess:
        metric = leading(found.scores, setting.dataset.spec.modality)
        score, guess = found.scores[metric.name].value, found.baseline[metric.name].value
        must(
            metric.gain(score, guess) >= 0,
            f"the attack's {metric.words} is {score:.3g} where the best guess without any update has "
            f"{guess:.3g}: it reads nothing from the updates, or its candidates are in other units than the "
            "data.",
        )
    return found
