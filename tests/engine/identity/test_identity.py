"""What keys see and what they do not: code without a file, code in memory, models, values."""

from __future__ import annotations

import importlib
import itertools
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from seepage.core.types import InputSpec, Modality
from seepage.engine.identity import CodeReader, behaviour, digest, state
from seepage.engine.identity.packages import ABSENT, version
from seepage.engine.identity.sources import is_own

ROW = InputSpec(modality=Modality.TABULAR, shape=(4,), num_classes=3)


def cell(source: str, name: str = "f", **given: Any) -> FunctionType:
    """What a notebook's cell defines: a function of __main__ without a file."""
    scope: dict[str, Any] = {"__name__": "__main__", **given}
    exec(compile(source, "<ipython-input>", "exec"), scope)
    found: FunctionType = scope[name]
    return found


def key(thing: Any) -> str:
    return CodeReader().read(thing).digest


SAME = [
    ("def f(x):\n    return x + 1", "def f(x):\n\n    # why\n    return (x  + 1)"),
    ("def f(x):\n    return x in {'a', 'b', 'c'}", "def f(x):\n    return x in {'a', 'b', 'c'}"),
    ("WIDTH = 3\ndef f(x):\n    return WIDTH", "OTHER = 1\nWIDTH = 3\ndef f(x):\n    return WIDTH"),
]
OTHER = [
    ("def f(x):\n    return x + 1", "x + 2"),
    ("def f(x):\n    return x + 1", "x - 1"),
    ("def f(x, y=1):\n    return x", "y=2"),
    ("def f(x, *, y=1):\n    return x", "y=2"),
    ("WIDTH = 3\ndef f(x):\n    return WIDTH", "WIDTH = 4"),
    ("def g():\n    return 1\ndef f(x):\n    return g()", "return 2"),
    ("def f(x):\n    return (lambda: 1)()", "(lambda: 2)"),
    ("def h(n):\n    return lambda x: n\nf = h(1)", "h(2)"),
    ("class f:\n    def forward(self):\n        return 1", "return 2"),
    ("class f:\n    size = 1", "size = 2"),
    ("class b:\n    size = 1\nclass f(b):\n    pass", "size = 2"),
    ("class f:\n    @property\n    def a(self):\n        return 1", "return 2"),
    ("class f:\n    @staticmethod\n    def a():\n        return 1", "return 2"),
    ("class g:\n    a = 1\ndef f():\n    return g()", "a = 2"),
    ("from functools import partial\ndef g(a):\n    return a\nf = partial(g, 1)", "return 2"),
    ("from functools import partial\ndef g(a):\n    return a\nf = partial(g, 1)", "partial(g, 2)"),
]
"""A cell, and what an edit makes of a part of it."""


def edited(source: str, part: str) -> str:
    """The cell with `part` in the place of what it resembles."""
    old = {
        "x + 2": "x + 1",
        "x - 1": "x + 1",
        "y=2": "y=1",
        "WIDTH = 4": "WIDTH = 3",
        "(lambda: 2)": "(lambda: 1)",
        "h(2)": "h(1)",
        "size = 2": "size = 1",
        "a = 2": "a = 1",
        "partial(g, 2)": "partial(g, 1)",
        "return 2": "return 1" if "return 1" in source else "return a",
    }[part]
    assert old in source
    return source.replace(old, part)


@pytest.mark.parametrize(("one", "other"), SAME)
def test_a_notebooks_function_is_the_same_wherever_it_stands(one: str, other: str) -> None:
    assert key(cell(one)) == key(cell("\n\n" + other))


@pytest.mark.parametrize(("source", "part"), OTHER)
def test_a_notebooks_function_is_another_with_whatever_it_uses(source: str, part: str) -> None:
    assert key(cell(source)) == key(cell(source)) != key(cell(edited(source, part)))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """A module of the user's, imported."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def load(text: str) -> ModuleType:
        (tmp_path / "users_own.py").write_text(text)
        sys.modules.pop("users_own", None)
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        importlib.invalidate_caches()
        try:
            return importlib.import_module("users_own")
        finally:
            sys.dont_write_bytecode = before

    yield load  # type: ignore[misc]
    sys.modules.pop("users_own", None)


def test_a_file_that_was_edited_after_its_import_is_not_what_runs(
    module: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    old, new = "def f():\n    return 1\n", "def f():\n    return 2\n"
    loaded = module(old)
    before = key(loaded.f)
    (tmp_path / "users_own.py").write_text(new)  # the kernel still has the old one
    mixed = key(loaded.f)
    after = key(module(new).f)
    assert len({before, mixed, after}) == 3
    assert key(module(old).f) == before


def test_a_function_that_was_replaced_counts(module: Callable[[str], ModuleType]) -> None:
    loaded = module("class C:\n    def f(self):\n        return 1\n")
    before = key(loaded.C)
    original = loaded.C.f
    exec(compile("def f(self):\n    return 2", loaded.__file__, "exec"), vars(loaded))  # type: ignore[arg-type]
    loaded.C.f = loaded.f
    assert key(loaded.C) != before
    loaded.C.f = original
    del loaded.f
    assert key(loaded.C) == before


def test_dataclasses_and_lazy_imports_leave_the_key_as_it_is(
    module: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    """Neither generated methods nor a module that is loaded only when it is used."""
    (tmp_path / "users_late.py").write_text(
        "from dataclasses import dataclass\n@dataclass\nclass D:\n    a: int = 1\n"
    )
    text = "def f():\n    import users_late\n    return users_late.D()\n"
    loaded = module(text)
    before = key(loaded.f)
    loaded.f()
    assert "users_late" in sys.modules and key(loaded.f) == before
    (tmp_path / "users_late.py").write_text("class D:\n    a = 2\n")
    assert key(loaded.f) != before
    del sys.modules["users_late"]


def test_packages_relative_imports_and_files_that_are_no_source(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "users_package"
    (package / "inner").mkdir(parents=True)
    files = {
        "__init__.py": "",
        "top.py": "from . import near\nfrom .inner.far import value\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from . import only_types\n",
        "near.py": "import torch\n",
        "only_types.py": "",
        "inner/__init__.py": "",
        "inner/far.py": "from ..near import torch\nfrom users_package import extension\nvalue = 1\n",
        "extension.so": "\0compiled",
    }
    for name, text in files.items():
        (package / name).write_text(text)

    def read() -> str:
        importlib.invalidate_caches()
        return CodeReader().read("users_package.top").digest

    before = read()
    assert "users_package" not in sys.modules  # nothing was run
    assert "torch" in CodeReader().read("users_package.top").packages
    for name, text in files.items():
        (package / name).write_text(text + ("\1" if name.endswith(".so") else "\nedited = 1\n"))
        counts = name != "only_types.py"
        assert (read() != before) == counts, name
        (package / name).write_text(text)
        assert read() == before


def test_versions_are_found_by_both_names_of_a_package() -> None:
    assert version("sklearn") == version("scikit-learn") != ABSENT
    assert version("no_such_package") == ABSENT


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def changed(change: Callable[[nn.Sequential], Any]) -> nn.Sequential:
    model = net()
    with torch.no_grad():
        change(model)
    return model


CHANGES: dict[str, Callable[[nn.Sequential], Any]] = {
    "one weight": lambda m: m[0].weight[0, 0].add_(1e-6),
    "frozen": lambda m: m[0].requires_grad_(False),
    "dtype": lambda m: m.double(),
    "mode": lambda m: m.eval(),
    "mode of one layer": lambda m: m[2].eval(),
    "type": lambda m: m.__setitem__(1, nn.Tanh()),
    "setting": lambda m: setattr(m[2], "p", 0.4),
    "own attribute": lambda m: setattr(m, "_scale", 2.0),
    "buffer that is not saved": lambda m: m.register_buffer("b", torch.zeros(1), persistent=False),
    "shared weights": lambda m: setattr(m[3], "bias", nn.Parameter(m[3].bias)),
}


@pytest.mark.parametrize("change", [c for c in CHANGES if c != "shared weights"])
def test_the_state_of_a_model_covers(change: str) -> None:
    assert state(net()) == state(changed(CHANGES["shared weights"]))  # an equal copy of a bias
    assert state(changed(CHANGES[change])) != state(net())


def test_tied_weights_are_another_model_than_equal_ones() -> None:
    tied, equal = (nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)) for _ in range(2))
    tied[1].weight = tied[0].weight
    for layer in equal:
        layer.load_state_dict(tied[0].state_dict())
    assert state(tied) != state(equal)


def test_behaviour_sees_hooks_on_values_and_on_gradients_and_replaced_methods() -> None:
    plain = behaviour(net(), ROW)
    forward, backward, method = net(), net(), net()
    forward[1].register_forward_hook(lambda module, inputs, output: 2 * output)
    backward[3].weight.register_hook(lambda gradient: 2 * gradient)
    method[1].forward = torch.tanh  # type: ignore[method-assign,assignment]
    assert len({plain, *(behaviour(m, ROW) for m in (forward, backward, method))}) == 4
    assert state(backward) == state(net())


class Random(nn.Module):
    """Every source of random numbers in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x) + torch.rand(3) + random.random() + float(np.random.rand())


COUNT = itertools.count()


class Unrepeatable(Random):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x) * (1 + next(COUNT))


def test_a_random_model_has_one_behaviour_and_the_random_states_stay() -> None:
    model = Random()
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    threads = torch.get_num_threads()
    first = behaviour(model, ROW)
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate()
    assert states[2] == np.random.get_state()[1].tolist() and threads == torch.get_num_threads()
    torch.rand(1), random.random(), np.random.rand()
    assert behaviour(model, ROW) == first and model.training
    assert behaviour(Unrepeatable(), ROW) == behaviour(Unrepeatable(), ROW)


def test_a_model_that_cannot_be_probed_is_that() -> None:
    assert behaviour(nn.Linear(5, 3), ROW) == ("cannot be run: RuntimeError",)
    text = InputSpec(modality=Modality.TEXT, shape=(6,), num_classes=2, vocabulary=9, value_range=None)
    words = nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(12, 2))
    assert behaviour(words, text) == behaviour(words, text)
    assert behaviour(words.requires_grad_(False), text)[0] == ""  # nothing is trained, and that is fine


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        ("1", 1),
        (None, "None"),
        ([1, 2], [12]),
        (["a", "b"], ["ab"]),
        ([[1], 2], [[1, 2]]),
        ((1,), [1]),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2), torch.tensor([0.0, -0.0])),
        (torch.zeros(2, 1), torch.zeros(1, 2)),
        (torch.tensor(1.0, dtype=torch.bfloat16), torch.tensor(1.0, dtype=torch.float16)),
        (
            ROW,
            InputSpec(modality=Modality.TABULAR, shape=(4,), num_classes=3, mean=(0.0,) * 4, std=(1.0,) * 4),
        ),
    ],
)
def test_digests_tell_values_apart(one: Any, other: Any) -> None:
    assert digest(one) != digest(other)
    assert digest(one) == digest(one)


def test_digests_of_odd_tensors() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    assert digest(x.t()) == digest(x.t().contiguous()) != digest(x)
    assert digest(x.to_sparse()) != digest((x + 1).to_sparse())
    assert digest(torch.empty(0)) != digest(torch.empty(0, 3))
    assert digest(torch.empty(3, device="meta")) == digest(torch.empty(3, device="meta"))
    assert digest(x.numpy()) != digest(x.numpy() + 1)


SCRIPT = """
import seepage, torch
from torch import nn

WIDTH = 12

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x):
        return self.last(self.first(x.flatten(1)).relu())

ran = []
import seepage.engine.work as run
inner = run.run_cell
run.run_cell = lambda *given: (ran.append(1), inner(*given))[1]
seepage.audit(
    model=lambda: Net(), data="digits", attacks=["analytic_extraction"], batch_size=1, seeds=[0], out="run"
)
print(len(ran))
"""


def test_a_script_resumes_whatever_else_is_edited_in_it(tmp_path: Path) -> None:
    """In new processes, with other hash seeds and threads: sets have another order, sums another rounding."""

    def cells(text: str, number: int) -> int:
        Path("script.py").write_text(text)
        environment = {**os.environ, "PYTHONHASHSEED": str(number), "OMP_NUM_THREADS": str(number)}
        command = [sys.executable, "script.py"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert cells(SCRIPT, 1) == 2
    assert cells("print  # another line\n" + SCRIPT + "more = 1\n", 2) == 0
    assert cells(SCRIPT.replace(".relu()", ".relu() + 0"), 1) == 2  # the same figures, by other code


def test_what_is_looked_up_by_its_place_counts_as_imported() -> None:
    """trap_weights loads its reader by name: a change of the reader must run its cells again."""
    from seepage.engine.identity.sources import parse

    text = b'READERS = {"peel": "seepage.attacks.reading.exact_extraction:peel", "other": "a.b:c"}'
    assert parse(text, "m", False).imports == (("seepage.attacks.reading.exact_extraction", ()),)


def test_packages_of_another_environment_on_the_path_are_not_ones_own(tmp_path: Path) -> None:
    """Or all of torch would be read and hashed as if the user had written it."""
    for folder in ("lib/python3/site-packages", "lib/python3/dist-packages"):
        assert not is_own("elsewhere", tmp_path / folder / "elsewhere" / "__init__.py")
    assert is_own("elsewhere", tmp_path / "src" / "elsewhere" / "__init__.py")


def test_hooks_are_not_told_apart_by_how_many_a_process_made_before() -> None:
    """Hugging Face models get one that takes keywords: every worker of a pool numbered it differently."""

    def hooked() -> nn.Module:
        model = nn.Linear(2, 2)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        model.register_forward_pre_hook(lambda module, args, kwargs: (args, kwargs), with_kwargs=True)
        return model

    assert state(hooked()) == state(hooked())
