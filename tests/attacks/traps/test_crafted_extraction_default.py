"""The strongest reading of a crafted layer is the default; the published one is an option."""

from __future__ import annotations

import inspect

import pytest

from seepage.attacks import ATTACKS
from seepage.engine.cell import run_cell
from seepage.engine.prepare import prepare
from seepage.engine.spec import parse_spec

# What scale_mia reads are features; its pictures come out of a decoder and are never exact.
READ = [
    name
    for name, build in ATTACKS.items()
    if "read" in inspect.signature(build).parameters and name != "scale_mia"
]


def exact(name: str, data: str, seed: int, **settings: str) -> float:
    spec = {
        "model": {"name": "mlp", "hidden": [100]},
        "data": data,
        "attacks": [{"name": name, **settings}],
        "threat": {"base": "malicious_server", "grant": sorted(ATTACKS[name]().requires)},
        "seeds": [seed],
        "protocol": {"batch_size": 24},
    }
    prepared = prepare(parse_spec(spec))
    cell, _ = run_cell(prepared, prepared.refs[1], seed)
    return sum(example.scores["exact"] for example in cell.examples)


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("data", ["digits", "photos"])
def test_the_default_reads_at_least_twice_what_single_rows_show(name: str, data: str) -> None:
    """Few crafted rows leave lone rows to few examples: on 100 rows peeling adds one to thirteen. A ladder of
    1000 rungs already parts most of 24 examples, and so do LOKI's rows of one client: no less than that."""
    default = sum(exact(name, data, seed) for seed in (0, 1))
    least = 1 if name in ("shifted_rows", "sparse_traps", "imprint", "loki") else 2
    assert default >= least * sum(exact(name, data, seed, read="rows") for seed in (0, 1)) > 0
    assert default == sum(exact(name, data, seed, read="peel") for seed in (0, 1))


def test_both_trap_attacks_have_a_choice() -> None:
    assert {"trap_weights", "quantile_traps"} <= set(READ)
