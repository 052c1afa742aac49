"""The command line as a user meets it: exit codes, one-sentence errors, no torch before it is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from seepage.cli import main

MODEL = """
import torch
from torch import nn
def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 30), nn.ReLU(), nn.Linear(30, 3))
def wrong_shape():
    return nn.Sequential(nn.Flatten(), nn.Linear(99, 3))
def no_linear():
    return nn.Sequential(nn.Conv2d(1, 3, 4), nn.Flatten())
def not_a_model():
    return 7
def explodes():
    raise RuntimeError("no licence found")
"""
DATA = """
import torch
def load():
    g = torch.Generator().manual_seed(0)
    return torch.rand(40, 1, 4, 4, generator=g), torch.arange(40) % 3
def empty():
    return torch.zeros(0, 1, 4, 4), torch.zeros(0, dtype=torch.long)
def nan():
    x, y = load(); x[3] = float("nan"); return x, y
def negative_label():
    x, y = load(); y[0] = -1; return x, y
def float_label():
    x, y = load(); return x, y + 0.5
def uneven():
    x, y = load(); return x, y[:-1]
"""


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A user's folder: their model, their data, an audit file."""
    (tmp_path / "mine_models.py").write_text(MODEL)
    (tmp_path / "mine_data.py").write_text(DATA)
    for name in ("mine_models", "mine_data"):
        sys.modules.pop(name, None)
    return tmp_path


def spec(folder: Path, extra: str = "", **changes: str) -> str:
    lines = {
        "model": '"mine_models:build"',
        "data": '"mine_data:load"',
        "attacks": '["analytic_extraction"]',
        "seeds": "[0]",
        "protocol": "{batch_size = 2}",
        **changes,
    }
    file = folder / "audit.toml"
    file.write_text("\n".join(f"{key} = {value}" for key, value in lines.items()) + "\n" + extra)
    return str(file)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def test_a_users_own_model_and_data_from_a_file(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("audit", spec(user), "--out", "run") == 0
    shown = capsys.readouterr().out
    assert "analytic_extraction" in shown and "Report: run/report.html" in shown
    assert (user / "run" / "report.html").stat().st_size > 1000


def test_json_is_json(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("audit", spec(user), "--out", "run", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert {a["attack"]["name"] for a in result["attacks"]} == {"prior_only", "analytic_extraction"}
    assert run("report", "run", "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert again["attacks"] == result["attacks"]


def test_report_is_rebuilt_from_the_log_alone(user: Path) -> None:
    assert run("audit", spec(user), "--out", "run") == 0
    first = (user / "run" / "report.html").read_text()
    (user / "run" / "report.html").unlink()
    (user / "mine_models.py").unlink()
    (user / "mine_data.py").unlink()
    assert run("report", "run") == 0
    assert (user / "run" / "report.html").read_text() == first


@pytest.mark.parametrize(
    ("thresholds", "code"),
    [("{exact = 0.01}", 1), ("{exact = 1.5}", 2), ("{mse = 1e-30}", 0), ("{mse = 0.5}", 1)],
)
def test_fail_on_sets_the_exit_code(user: Path, thresholds: str, code: int) -> None:
    file = spec(user, fail_on=thresholds, protocol="{batch_size = 1}")
    assert run("audit", file, "--out", "run") == code


def test_init_writes_at_most_15_lines_and_never_overwrites(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("init", "mine.toml") == 0
    text = Path("mine.toml").read_text()
    assert len(text.splitlines()) <= 15
    assert run("init", "mine.toml") == 2
    assert "--force" in capsys.readouterr().err
    assert run("init", "mine.toml", "--force") == 0


@pytest.mark.parametrize(("example", "attack"), [("text", "exact_text"), ("table", "exact_table")])
def test_the_examples_run_as_they_are_written(
    user: Path, capsys: pytest.CaptureFixture[str], example: str, attack: str
) -> None:
    if example == "text":
        pytest.importorskip("transformers", reason="the extra transformers is not installed")
    assert run("init", "mine.toml", "--example", example) == 0
    assert "Run: seepage audit mine.toml" in capsys.readouterr().out
    assert run("init", "mine.toml", "--example", example) == 2
    file = user / "mine.toml"
    text = file.read_text().replace("[0, 1, 2]", "[0]").replace("batch_size = 8", "batch_size = 2")
    file.write_text(f'attacks = ["{attack}"]\n{text}')
    capsys.readouterr()
    assert run("audit", "mine.toml", "--out", "run", "--no-advice") == 0
    said = capsys.readouterr().out
    page = (user / "run" / "report.html").read_text()
    # sentences as people read them; a column by its name
    assert ("What the server reads" in said) == (example == "text")
    assert ("<mark>" if example == "text" else '<th scope="col">age</th>') in page


def test_an_unknown_example_is_named(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("init", "mine.toml", "--example", "tables") == 2
    assert "did you mean 'table'" in capsys.readouterr().err
    assert run("init", "my-own.toml", "--example", "text") == 2
    assert "letters, digits and _" in capsys.readouterr().err
    assert run("init", "mine.toml", "--example", "text", "--study") == 2


def test_the_written_study_runs_once_model_and_data_are_filled_in(
    user: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("init", "study.toml", "--study") == 0
    assert "seepage tradeoff study.toml" in capsys.readouterr().out
    file = user / "study.toml"
    text = file.read_text().replace("my_package.models:build", "mine_models:build")
    text = text.replace("my_package.data:load", "mine_data:load").replace("batch_size = 16", "batch_size = 3")
    for written, small in (
        ("[0, 1, 2]", "[0]"),
        ('attacks = "auto"', 'attacks = ["analytic_extraction"]'),
        ("sigma = [0.001, 0.01]", "sigma = 0.001"),  # one list is enough
        ("share = [0.9, 0.99]", "share = 0.9"),
        ("epsilon = [1.0, 3.0, 8.0]", "epsilon = 8.0"),
        ("rounds     = 300", "rounds = 1"),
        ('{name = "secure_sum", clients = 4}', '{name = "secure_sum", clients = 2}'),
        ("batches = 4", "batches = 2"),
        ("clients    = 4", "examples = 6\nclients = 2"),
        ("test_examples = 256", "test_examples = 2"),
        ("canaries   = 500", "canaries = 0"),
    ):
        assert written in text
        text = text.replace(written, small)
    file.write_text(text)
    assert run("tradeoff", "study.toml", "--out", "study", "--jobs", "1") == 0
    assert "knowing" in (user / "study" / "report.html").read_text()


def test_the_written_spec_runs_once_model_and_data_are_filled_in(user: Path) -> None:
    assert run("init", "mine.toml") == 0
    file = user / "mine.toml"
    text = file.read_text().replace("my_package.models:build", "mine_models:build")
    text = text.replace("my_package.data:load", "mine_data:load").replace("batch_size = 32", "batch_size = 3")
    file.write_text(text)
    assert run("audit", "mine.toml", "--out", "run", "--budget", "5s") in (0, 1)


def test_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    from seepage.attacks import ATTACKS
    from seepage.data import DATASETS
    from seepage.models import MODELS

    assert run("list", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {e["name"] for e in found["attacks"]} == set(ATTACKS)
    assert {e["name"] for e in found["models"]} == set(MODELS)
    assert {e["name"] for e in found["data"]} == set(DATASETS)
    assert all(e["description"] for kind in found.values() for e in kind)
    assert run("list") == 0


BAD_SPECS = [
    ({"modle": '"mlp"'}, "unknown key 'modle': did you mean 'model'"),
    ({"protocol": "{batchsize = 2}"}, "did you mean 'protocol.batch_size'"),
    ({"protocol": "{batch_size = 0}"}, "'protocol.batch_size' is wrong"),
    ({"protocol": "{lr = nan}"}, "'protocol.lr' is wrong"),
    ({"protocol": "{batch_size = 41}"}, "only 40 are there"),
    ({"protocol": '{clients = 2, batch_size = 2, aggregation = "add"}'}, "aggregation"),
    ({"model": '"mlpp"'}, "did you mean 'mlp'"),
    ({"model": '"mine_models:bild"'}, "did you mean 'build'"),
    ({"model": '"mine_models:wrong_shape"'}, "(2, 1, 4, 4)"),
    ({"model": '"mine_models:not_a_model"'}, "torch.nn.Module"),
    ({"model": '"mine_models:explodes"'}, "no licence found"),
    ({"model": '{name = "mlp", hiden = [4]}'}, "did you mean 'hidden'"),
    ({"model": '{name = "mlp", weights = "gone.safetensors"}'}, "gone.safetensors"),
    ({"data": '"digitz"'}, "did you mean 'digits'"),
    ({"data": '"gone.npz"'}, "gone.npz"),
    ({"data": '"mine_data:empty"'}, "empty"),
    ({"data": '"mine_data:nan"'}, "NaN"),
    ({"data": '"mine_data:negative_label"'}, "label"),
    ({"data": '"mine_data:float_label"'}, "label"),
    ({"data": '"mine_data:uneven"'}, "39"),
    ({"attacks": '["analitic_extraction"]'}, "did you mean 'analytic_extraction'"),
    ({"attacks": '[{name = "analytic_extraction", layers = "x"}]'}, "did you mean 'layer'"),
    ({"attacks": '["analytic_extraction", "analytic_extraction"]'}, "listed twice"),
    ({"defenses": '["cliping"]'}, "did you mean 'clipping'"),
    ({"defenses": '[{name = "clipping", norm = -1.0}]'}, "norm must be positive"),
    ({"threat": '"honest_but_curius"'}, "did you mean 'honest_but_curious'"),
    ({"threat": '{base = "outsider", grant = ["label"]}'}, "did you mean 'labels'"),
    ({"threat": '"honest_but_curious_aggregate"', "protocol": "{clients = 2}"}, "set aggregation"),
    ({"seeds": "[]"}, "at least one seed"),
    ({"seeds": "[1, 1]"}, "twice"),
    ({"device": '"tpu9"'}, "device 'tpu9'"),
    ({"fail_on": "{exactness = 0.1}"}, "unknown metric in fail_on 'exactness': did you mean 'exact'"),
]


@pytest.mark.parametrize(("changes", "words"), BAD_SPECS)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    user: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, str], words: str
) -> None:
    assert run("audit", spec(user, **changes), "--out", "run") == 2
    captured = capsys.readouterr()
    said = [line for line in captured.err.splitlines() if line.startswith("seepage:")]
    assert len(said) == 1 and words in said[0], captured.err
    assert "Traceback" not in captured.err
    assert not (user / "run" / "log.json").exists()  # nothing was started


def test_a_folder_beside_the_audit_that_is_called_like_a_dataset_is_asked_about(
    user: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (user / "photos").mkdir()
    (user / "audit.toml").write_text('model = "mlp"\ndata = "photos"\n')
    elsewhere = user / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert run("audit", "../audit.toml") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "'seepage:photos' for the dataset, or '../photos' for the folder" in told


def test_bad_files(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (user / "broken.toml").write_text("model = [")
    (user / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (user / "cut.npz").write_bytes(b"PK\x03\x04 cut off")
    np.savez(user / "objects.npz", inputs=np.array([{"a": 1}], dtype=object), labels=np.array([0]))
    save_file({"1.weight": torch.zeros(3, 3)}, user / "other.safetensors")
    weights = '{name = "mine_models:build", weights = "other.safetensors"}'
    for changes, words in [
        ({"data": '"cut.npz"'}, "cut.npz"),
        ({"data": '"objects.npz"'}, "objects.npz"),
        ({"model": weights}, "other.safetensors"),
    ]:
        assert run("audit", spec(user, **changes)) == 2
        err = capsys.readouterr().err
        assert words in err and "Traceback" not in err, err
    for arguments, words in [
        (["audit", "gone.toml"], "does not exist"),
        (["audit", "broken.toml"], "not valid TOML"),
        (["audit", "binary.toml"], "cannot be read"),
        (["report", "gone"], "no log.json"),
        (["reproduce", "boenisch2021/table22"], "did you mean"),
        (["reproduce", "boenisch2021/table2", "--data", "gone"], "not a folder"),
    ]:
        assert run(*arguments) == 2, arguments
        err = capsys.readouterr().err
        assert words in err and "Traceback" not in err, err


def test_weights_from_a_file_are_what_is_audited(user: Path) -> None:
    sys.path.insert(0, str(user))
    try:
        from mine_models import build  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(user))
    net = build()
    with torch.no_grad():
        net[1].weight.zero_()
        net[1].bias.fill_(-1.0)  # a dead layer: nothing can leak through it
    save_file(net.state_dict(), user / "dead.safetensors")
    file = spec(user, model='{name = "mine_models:build", weights = "dead.safetensors"}')
    assert run("audit", file, "--out", "run") == 0
    cell = json.loads((user / "run" / "cells" / "analytic_extraction-seed0.json").read_text())
    assert cell["candidates"] == 0
    assert any("zero everywhere" in note for note in cell["notes"])


@pytest.mark.parametrize("arguments", [["--help"], ["audit", "--help"], ["init", "x.toml"], ["report", "x"]])
def test_torch_is_not_imported_before_it_is_needed(tmp_path: Path, arguments: list[str]) -> None:
    code = (
        "import sys\nfrom seepage.cli import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
        "sys.exit(3 if 'torch' in sys.modules else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("text", ["soon", "-5s", "0", "nan", ""])
def test_a_budget_that_is_no_time(user: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert run("audit", spec(user), "--budget", text) == 2
    assert "is no time" in capsys.readouterr().err


def test_a_budget_limits_the_steps_of_a_search(user: Path) -> None:
    file = spec(
        user, attacks='[{name = "inverting_gradients", steps = 1000000}]', protocol="{batch_size = 1}"
    )
    assert run("audit", file, "--out", "run", "--budget", "1s") == 0
    cell = json.loads(next((user / "run" / "cells").glob("inverting*.json")).read_text())
    assert cell["status"] == "done" and cell["cost"]["seconds"] < 30
    assert not list((user / "run" / "pictures").glob("*live*"))


def test_guard_tells_a_trap_from_an_honest_model(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from seepage.attacks import ATTACKS
    from seepage.core.types import InputSpec, Knowledge, Modality

    sys.path.insert(0, str(user))
    try:
        from mine_models import build  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(user))
    torch.manual_seed(0)
    honest = build()
    known = Knowledge(input=InputSpec(modality=Modality.IMAGE, shape=(1, 4, 4), num_classes=3))
    crafted = ATTACKS["trap_weights"](scale=0.8).craft(honest, (), known)
    assert crafted is not None
    save_file(honest.state_dict(), user / "honest.safetensors")
    save_file(crafted.model.state_dict(), user / "trap.safetensors")
    assert run("guard", "honest.safetensors") == 0
    assert "clean" in capsys.readouterr().out.lower()
    assert run("guard", "trap.safetensors", "--json") == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "trap"
    (user / "junk.pt").write_bytes(b"not a model")
    assert run("guard", "junk.pt") == 2
    assert run("guard", "gone.safetensors") == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_client_that_refuses_traps_leaks_nothing_to_them(user: Path) -> None:
    file = spec(
        user,
        threat='"malicious_server"',
        attacks='["analytic_extraction", {name = "trap_weights", scale = 0.8}]',
        defenses='["refuse_traps"]',
    )
    assert run("audit", file, "--out", "run") == 0
    cells = {
        c["attack"]["name"]: c
        for c in (json.loads(f.read_text()) for f in (user / "run/cells").glob("*.json"))
    }
    assert cells["analytic_extraction"]["status"] == "done"
    assert cells["trap_weights"]["status"] == "not_applicable"
    assert "refused to train" in cells["trap_weights"]["reason"]


def test_tradeoff_writes_a_page(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = spec(
        user,
        extra="[training]\nrounds = 2\nclients = 1\nexamples = 4\ntest_examples = 8\n",
        defenses='[{name = "clipping", norm = [1.0, 0.1]}]',
    )
    assert run("tradeoff", study, "--out", "study", "--jobs", "1") == 0
    assert "study/report.html" in capsys.readouterr().out
    assert "clipping" in (user / "study" / "report.html").read_text()
    assert run("tradeoff", "gone.toml") == 2


def test_python_m_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "seepage", "--help"], capture_output=True, text=True, check=True
    )
    assert "tradeoff" in done.stdout


def test_an_update_file_is_imported_and_audited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recorded_network.py").write_text(
        "import torch\n\ndef build():\n    return torch.nn.Linear(5, 3)\n"
    )
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 3)
    torch.nn.functional.cross_entropy(model(torch.rand(1, 5)), torch.tensor([1])).backward()
    torch.save(model.state_dict(), "model.pt")
    torch.save({name: p.grad for name, p in model.named_parameters()}, "update.pt")

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as end:
            main(list(arguments))
        said = capsys.readouterr()
        return int(end.value.code or 0), " ".join((said.out + said.err).split())

    given = ("import", "update.pt", "--sent", "model.pt", "--into", "recorded", "--examples", "1")
    code, said = run(*given)
    assert code == 2 and "give its kind" in said
    code, said = run(*given, "--kind", "gradient")
    assert code == 0 and "round0001-client0000.json" in said
    code, said = run("audit", "recorded")
    assert code == 2 and "--model" in said
    code, said = run("audit", "recorded", "--model", "recorded_network:build", "--budget", "4s", "--json")
    assert code == 3, said
    assert '"outcome": "not_measured"' in said and "vouches for 1 row" in said
