"""Every attack says which exchange a candidate was read from, and says it rightly."""

from __future__ import annotations

import pytest
import torch

from seepage.attacks import ATTACKS
from seepage.engine.pairing import pair
from seepage.engine.views import Views, raw_candidates
from seepage.metrics import exact_rule

from .test_attacks_truth_isolation import QUICK, SPEC, setting


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_what_came_out_exactly_is_behind_the_exchange_that_is_named(name: str) -> None:
    attack = ATTACKS[name](**QUICK.get(name, {}))
    played, known = setting(attack)
    assert len({exchange.clients for exchange in played.exchanges}) == 3
    result = attack.run(played.exchanges, known)
    if result.shared:
        return
    assert result.source is not None or len(result) == 0
    if result.space != "input":
        return
    candidates = raw_candidates(result, SPEC, torch.float32)
    anywhere = exact_rule(SPEC, played.truth.inputs).every(candidates, played.truth.inputs).any(1)
    assert torch.equal(pair(result, candidates, Views(played, SPEC, "input", 1e-3)).right, anywhere)
