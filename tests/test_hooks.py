"""The pre-commit hook: every file is looked at, and one failure is enough."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from seepage.hooks import run_each

HOOKS = Path(__file__).parents[1] / ".pre-commit-hooks.yaml"


def _weights(path: Path, *, trap: bool) -> str:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10))
    state = net.state_dict()
    if trap:
        state["0.weight"] = torch.ones(100, 64) / 64
        state["0.bias"] = -torch.linspace(0.1, 0.6, 100)
    save_file(state, path)
    return str(path)


def test_every_file_counts(tmp_path, capsys):
    clean, trap = (
        _weights(tmp_path / "a.safetensors", trap=False),
        _weights(tmp_path / "b.safetensors", trap=True),
    )
    assert run_each(["guard", "--", clean]) == 0
    assert run_each(["guard", "--", clean, trap, clean]) == 1
    assert capsys.readouterr().out.count("Verdict:") == 4
    assert run_each(["guard", clean]) == 2


def test_the_manifest_names_what_is_there():
    text = HOOKS.read_text(encoding="utf-8")
    assert text.count("python -m seepage.hooks ") == text.count("- id: ") == 2
    assert text.count("--]") == 2
