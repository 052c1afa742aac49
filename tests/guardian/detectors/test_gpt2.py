"""GPT-2 stores its layers inputs first, and is checked all the same."""

from __future__ import annotations

import pytest
from tests.models.families import built

from seepage.core.types import Verdict
from seepage.guardian import guard
from seepage.guardian.detectors import as_module


@pytest.mark.parametrize("task", ["CausalLM", "SequenceClassification", "TokenClassification"])
def test_an_honest_gpt2_is_read_and_clean_in_memory_and_from_its_tensors(task: str) -> None:
    for width, places in ((32, 64), (64, 256), (96, 96)):
        model = built("gpt2", task, n_embd=width, n_positions=places)
        for form in (model, as_module(model.state_dict())):
            report = guard(form)
            assert report.verdict is Verdict.CLEAN and not report.layers.unread
            assert {"transformer.h.0.attn.c_proj", "transformer.h.1.mlp.c_fc"} <= set(report.layers.read)
