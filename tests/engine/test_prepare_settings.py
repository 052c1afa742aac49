"""Whatever a user writes as a setting works or gets one sentence: no traceback, and true is no 1."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

from seepage.attacks import ATTACKS
from seepage.core.errors import SeepageError, SpecError
from seepage.core.settings import check_type, construct
from seepage.core.types import Batch, InputSpec, Knowledge, LocalTraining, Modality
from seepage.defenses import DEFENSES
from seepage.engine.prepare import prepare, prepare_again
from seepage.engine.prepared import Prepared
from seepage.engine.protocol_spec import ProtocolSpec
from seepage.engine.spec import AuditSpec, parse_spec
from seepage.engine.study import parse_study
from seepage.protocol import custom_threat, knowledge

WRONG: list[Any] = [
    *(1.5, -1, 0, 1, 10**9, 2**70, -(2**70), True, None),
    *(math.nan, math.inf, -math.inf, 1e308, -1e308, 1e-320),
    *("", "x", "nan", [], [1], [-1], [1.5], [2**70], ["x"], [None], [[1]]),
    *({}, {"a": 1}, {"name": 3}, {"lr": "x"}, {"lr": math.nan}, {"steps": -1}, {"layer": 0}),
]
SMALL = {
    "model": {"name": "mlp", "hidden": [16]},
    "data": "digits",
    "seeds": [0],
    "protocol": {"batch_size": 2},
}


@pytest.fixture(scope="module")
def known() -> Knowledge:
    return knowledge(
        custom_threat("malicious_server", grant=["labels"]),
        "per_client",
        spec=InputSpec(modality=Modality.IMAGE, shape=(1, 8, 8), num_classes=5),
        loss="cross_entropy",
        local=LocalTraining(),
        auxiliary=Batch(torch.rand(64, 1, 8, 8), torch.arange(64) % 5),
        seed=3,
    )


@pytest.fixture(scope="module")
def base() -> Prepared:
    return prepare(parse_spec(SMALL))


@pytest.mark.parametrize("name", list(ATTACKS))
def test_every_setting_of_every_attack(name: str, known: Knowledge) -> None:
    models = [
        nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 5)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)),
    ]
    for setting in inspect.signature(ATTACKS[name]).parameters:
        for value in WRONG:
            try:
                attack = construct(ATTACKS[name], {setting: value}, f"attack '{name}'")
            except SpecError as error:
                assert "\n" not in str(error)
                continue
            for model in models:
                try:
                    attack.check(model, known)
                except SeepageError as error:
                    assert "\n" not in str(error)


@pytest.mark.parametrize("name", list(DEFENSES))
def test_every_setting_of_every_defense(name: str, base: Prepared) -> None:
    for setting in DEFENSES[name].settings:
        for value in WRONG:
            try:
                spec = parse_spec({**SMALL, "defenses": [{"name": name, setting: value}]})
                prepare_again(base, spec).check()
            except SeepageError as error:
                assert "\n" not in str(error)


def _keys() -> Iterator[tuple[str | None, str]]:
    yield from ((None, key) for key in AuditSpec.model_fields)
    yield from (("protocol", key) for key in ProtocolSpec.model_fields)
    yield from (("threat", key) for key in ("base", "grant", "deny", "rounds"))


@pytest.mark.parametrize(("table", "key"), list(_keys()))
def test_every_key_of_an_audit(table: str | None, key: str) -> None:
    for value in WRONG:
        changed = {key: value} if table is None else {table: {**SMALL.get(table, {}), key: value}}  # type: ignore[dict-item]
        try:
            prepare(parse_spec({**SMALL, **changed}))
        except SeepageError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    "changes",
    [
        {"seeds": [1.5]},
        {"seeds": [True]},
        {"seeds": ["1"]},
        {"seeds": [-1]},
        {"seeds": [2**32]},
        {"seeds": 0},
        {"protocol": {"batch_size": 2.0}},
        {"protocol": {"batch_size": True}},
        {"protocol": {"batch_size": "2"}},
        {"protocol": {"batch_size": 10**12}},
        {"protocol": {"clients": 10**12}},
        {"protocol": {"clients": 10**9, "batch_size": 10**9}},
        {"protocol": {"lr": True}},
        {"protocol": {"lr": math.inf}},
        {"protocol": {"shuffle": 1}},
        {"protocol": {"momentum": math.nan}},
        {"protocol": {"dirichlet_alpha": math.inf}},
        {"public_examples": -1},
        {"adaptive": "yes"},
        {"device": "meta"},
        {"device": "hpu"},
        {"device": ""},
        {"device": "cuda:-1"},
        {"attacks": [{"name": "analytic_extraction", "layer": 0}]},
        {"attacks": [{"name": "inverting_gradients", "budget": 1e308}]},
        {"attacks": [{"name": "inverting_gradients", "steps": True}]},
        {"attacks": [{"name": "inverting_gradients", "assume": {"lr": "x"}}]},
        {"attacks": [{"name": "inverting_gradients", "assume": {"steps": -1}}]},
        {"attacks": [{"name": "adaptive", "attack": "inverting_gradients", "options": {"steps": 1.5}}]},
        {"defenses": [{"name": "gaussian_noise", "seed": 1.5}]},
        {"defenses": [{"name": "gaussian_noise", "sigma": True}]},
        {"defenses": [{"name": "clipping", "norm": "1"}]},
        {"defenses": [{"name": "share_layers", "only": "fc"}]},
    ],
)
def test_numbers_that_cannot_be_meant_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SeepageError) as refused:
        prepare(parse_spec({**SMALL, **changes}))
    assert "\n" not in str(refused.value)


def test_the_seeds_of_a_training_are_seeds_too() -> None:
    for wrong in ([1.5], [-1], [True], []):
        with pytest.raises(SpecError):
            parse_study({**SMALL, "training": {"seeds": wrong}})


def test_the_sentence_names_the_setting_what_it_must_be_and_what_was_given() -> None:
    with pytest.raises(SpecError, match=r"^attack 'tag': steps must be a whole number, not 1\.5\.$"):
        construct(ATTACKS["tag"], {"steps": 1.5}, "attack 'tag'")
    with pytest.raises(SpecError, match=r"layer must be a text or left out, not 0\.$"):
        construct(ATTACKS["analytic_extraction"], {"layer": 0}, "attack 'analytic_extraction'")


@pytest.mark.parametrize(
    ("value", "hint", "fits"),
    [
        (1, float, True),
        (1.0, int, False),
        (True, int, False),
        (1, bool, False),
        (math.nan, float, False),
        ([1, 2], Sequence[int], True),
        ([1, 2], tuple[int, ...], True),
        ((1, 2), Sequence[int], True),
        ("ab", Sequence[str], False),
        ([1, True], Sequence[int], False),
        (np.int64(3), int, True),
        (np.float64(3), float, True),
        ("a", Literal["a", "b"], True),
        ("c", Literal["a", "b"], False),
        (None, int | None, True),
        (1e39, float, False),
        (2**63, int, False),
        (2**63 - 1, int, True),
    ],
)
def test_types(value: Any, hint: Any, fits: bool) -> None:
    if fits:
        check_type(value, hint, "it")
        return
    with pytest.raises(SpecError, match=r"^it "):
        check_type(value, hint, "it")


def test_plain_functions_classes_and_partials_are_checked_alike() -> None:
    class Mine:
        def __init__(self, *, steps: int = 1) -> None:
            self.steps = steps

    def mine(first: int, *, steps: int = 1) -> int:
        return steps

    for factory in (Mine, partial(mine, 1)):
        construct(factory, {"steps": 2}, "it")
        with pytest.raises(SpecError, match="whole number"):
            construct(factory, {"steps": "2"}, "it")
