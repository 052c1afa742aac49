"""Encryption and masks: what the server sees of them."""

from __future__ import annotations

import pytest

from seepage.core.errors import SpecError
from seepage.engine.measures import with_measures
from seepage.engine.spec import parse_spec


@pytest.mark.parametrize("name", ["flower:secaggplus_mod", "nvflare:HEModelEncryptor"])
def test_the_server_sees_the_sum_alone(name: str) -> None:
    spec = parse_spec({"model": "mlp", "data": "digits", "defenses": [{"name": name, "clients": 3}]})
    protocol = with_measures(spec).protocol
    assert (protocol.aggregation, protocol.clients) == ("secure_sum", 3)


def test_layers_that_stay_open_are_refused() -> None:
    wanted = {"name": "nvflare:HEModelEncryptor", "encrypt_layers": ["fc"]}
    with pytest.raises(SpecError, match="nvflare:ExcludeVars"):
        with_measures(parse_spec({"model": "mlp", "data": "digits", "defenses": [wanted]}))
