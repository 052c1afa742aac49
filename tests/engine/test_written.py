"""Keys in the wrong table, and nearly right ones."""

from __future__ import annotations

import pytest

from seepage.core.errors import SpecError
from seepage.engine.spec import AuditSpec, parse_spec
from seepage.engine.written import misplaced

BASE = {"model": "mlp", "data": "digits"}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"batchsize": 8}, "'batch_size' belongs to the table [protocol]"),
        ({"batch_size": 8}, "'batch_size' belongs to the table [protocol]"),
        ({"protocol": {"seeds": 3}}, "'seeds' stands at the top of the file"),
        ({"protocol": {"batchsize": 8}}, "did you mean 'protocol.batch_size'"),
        ({"attaks": "auto"}, "did you mean 'attacks'"),
    ],
)
def test_the_sentence_names_the_right_place(wrong, said):
    with pytest.raises(SpecError) as refused:
        parse_spec({**BASE, **wrong})
    assert said in str(refused.value)


def test_only_near_keys_are_named():
    """From 0.7 to 0.9 the same slips are told apart from other words."""
    assert misplaced(("batchsize",), AuditSpec)
    assert misplaced(("Batch_Size",), AuditSpec)
    for other in ("epochs", "gpu", "workers", "output"):
        assert misplaced((other,), AuditSpec) == ""
