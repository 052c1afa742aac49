"""`load_data`: objects, functions, names and what the caller declares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, Subset, TensorDataset

from seepage.core.errors import DataError, SpecError
from seepage.core.types import Modality
from seepage.data import Dataset, load_data

X, Y = torch.arange(12.0).reshape(4, 3) / 12, torch.tensor([0, 1, 0, 1])


class Pairs(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """A map-style dataset made of whatever items it is given."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter([(torch.zeros(3), 0)])


@pytest.mark.parametrize(
    "reference",
    [
        (X, Y),
        [X, Y],
        (X.numpy(), Y.numpy()),
        (X.tolist(), Y.tolist()),
        (X.double().numpy().astype(">f8"), Y[:, None].float()),
        {"x": X, "y": Y},
        TensorDataset(X, Y),
        Pairs([(x, int(y)) for x, y in zip(X, Y, strict=True)]),
        Pairs([[x.numpy(), y] for x, y in zip(X, Y, strict=True)]),
        Subset(TensorDataset(torch.cat([X, X]), torch.cat([Y, Y])), range(4)),
        [(x, int(y)) for x, y in zip(X, Y, strict=True)],
    ],
)
def test_the_same_rows_however_they_are_passed(reference: Any) -> None:
    data = load_data(reference)
    torch.testing.assert_close(data.inputs, X)
    assert torch.equal(data.labels, Y)
    assert data.spec.modality is Modality.TABULAR
    assert data.spec.value_range == (0.0, 1.0)


def test_pairs_of_pil_pictures() -> None:
    items = [(Image.new("RGB", (8, 8), (255, 0, 0)), 0), (Image.new("RGB", (8, 8), (0, 0, 255)), 1)]
    assert load_data(Pairs(items)).inputs[:, :, 0, 0].tolist() == [[1, 0, 0], [0, 0, 1]]


def test_a_dataset_passes_through_and_takes_no_options() -> None:
    digits = load_data("digits")
    assert load_data(digits).inputs is digits.inputs
    with pytest.raises(SpecError, match="leave out the option 'layout'"):
        load_data(digits, layout="CHW")


@pytest.mark.parametrize(
    ("inputs", "modality"),
    [
        (torch.zeros(2, 5, dtype=torch.int64), Modality.TEXT),
        (torch.zeros(2, 5), Modality.TABULAR),
        (torch.zeros(2, 5, 5), Modality.IMAGE),
        (torch.zeros(2, 3, 5, 5), Modality.IMAGE),
        (torch.zeros(2, 1, 4, 4), Modality.IMAGE),
    ],
)
def test_modality_is_guessed_from_shape_and_type(inputs: torch.Tensor, modality: Modality) -> None:
    assert load_data((inputs, [0, 1])).spec.modality is modality


def test_tiny_pictures_are_read_the_way_they_are_square() -> None:
    assert load_data((torch.zeros(2, 3, 4, 4), [0, 1])).spec.shape == (3, 4, 4)
    assert load_data((torch.zeros(2, 4, 4, 3), [0, 1])).spec.shape == (3, 4, 4)
    assert load_data((torch.zeros(2, 3, 5, 3), [0, 1]), layout="HWC").spec.shape == (3, 3, 5)


def test_declared_values_replace_guesses() -> None:
    pictures = torch.rand(4, 3, 8, 8) * 2 - 1
    data = load_data((pictures, Y), value_range=[-1, 1], mean=0.5, std=[1, 2, 4], num_classes=7)
    assert data.spec.value_range == (-1.0, 1.0)
    assert (data.spec.mean, data.spec.std) == ((0.5, 0.5, 0.5), (1.0, 2.0, 4.0))
    assert data.spec.num_classes == 7
    torch.testing.assert_close(data.batch(torch.tensor([2])).inputs[0, 2], (pictures[2, 2] - 0.5) / 4)


def test_text_takes_a_vocabulary_and_more_classes_get_names() -> None:
    tokens = torch.tensor([[1, 2], [3, 0]])
    assert load_data((tokens, [0, 1])).spec.vocabulary == 4
    assert load_data((tokens, [0, 1]), vocabulary=100).spec.vocabulary == 100
    assert load_data((tokens.double(), [0, 1]), modality="text").inputs.dtype is torch.int64
    assert load_data("faces", num_classes=3).spec.class_names == ("no face", "face", "class 2")


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"modality": "audio"}, SpecError, "unknown modality 'audio'"),
        ({"modality": "image"}, DataError, "must be (N, C, H, W)"),
        ({"modality": "text"}, DataError, "whole numbers"),
        ({"value_range": (0, 0.5)}, DataError, "outside the value range"),
        ({"value_range": (1, 0)}, DataError, "empty"),
        ({"value_range": (0, 1, 2)}, SpecError, "3 numbers"),
        ({"value_range": ("a", "b")}, SpecError, "value_range is"),
        ({"mean": 0.5}, DataError, "only one of mean and std"),
        ({"mean": 0.5, "std": 0}, DataError, "above zero"),
        ({"mean": [0.5], "std": [1]}, DataError, "one number per column"),
        ({"num_classes": 1}, SpecError, "at least 2"),
        ({"num_classes": 2.0}, SpecError, "at least 2"),
        ({"size": 3}, SpecError, "no option 'size'"),
        ({"layout": "NHWC"}, DataError, "'CHW', 'HWC' or 'auto'"),
    ],
)
def test_wrong_declarations(options: dict[str, Any], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error) as raised:
        load_data((X, Y), **options)
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        (None, "data of type NoneType cannot be used"),
        (3, "data of type int cannot be used"),
        (Stream(), "data of type Stream cannot be used"),
        (Pairs([]), "empty"),
        (Pairs([torch.zeros(3)]), "item 0 is a Tensor"),
        (Pairs([(torch.zeros(3), 0), (torch.zeros(4), 1)]), "equal shape"),
        (
            Pairs([(torch.zeros(3), "cat"), (torch.zeros(3), "dog")]),
            "the labels are not one array of numbers",
        ),
        (TensorDataset(X), "holds 1 tensors"),
        ((X, Y, Y), "item 0 is a Tensor"),
        ({"x": X}, "name the missing array"),
        ((X, Y[:3]), "4 inputs but 3 labels"),
        ((X.to_sparse(), Y), "sparse"),
        (([[1, 2], [3]], [0, 1]), "not one array of numbers"),
    ],
)
def test_objects_that_are_no_data(reference: Any, sentence: str) -> None:
    with pytest.raises(DataError) as error:
        load_data(reference)
    assert sentence in str(error.value)


MODULE = """
import torch
from seepage.data import load_data
def pair(n=4): return torch.zeros(n, 3), torch.arange(n) % 2
def mapping(): return {"x": torch.zeros(4, 3), "y": torch.arange(4) % 2}
def dataset(): return load_data(pair(4))
def broken(): return 1 / 0
def nothing(): return None
number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"own_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return name


@pytest.mark.parametrize("function", ["pair", "mapping", "dataset"])
def test_a_function_in_the_current_folder(module: str, function: str) -> None:
    data = load_data(f"{module}:{function}")
    assert isinstance(data, Dataset)
    assert data.inputs.shape == (4, 3)


def test_a_function_gets_its_options(module: str) -> None:
    data = load_data(f"{module}:pair", n=6)
    assert (len(data), data.name, data.source) == (6, "pair", f"{module}:pair")
    with pytest.raises(SpecError, match="no option 'm'; valid options: n"):
        load_data(f"{module}:pair", m=6)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("broken", "failed with ZeroDivisionError"),
        ("nothing", "data of type NoneType cannot be used"),
        ("absent", "unknown function of module .* 'absent'"),
        ("number", "unknown function of module .* 'number'"),
    ],
)
def test_functions_that_fail(module: str, function: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        load_data(f"{module}:{function}")


def test_modules_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_syntax_error.py").write_text("def (")
    for name, kind in (
        ("no_such_module_anywhere", "ModuleNotFoundError"),
        ("own_syntax_error", "SyntaxError"),
    ):
        with pytest.raises(DataError, match=f"cannot be imported \\({kind}"):
            load_data(f"{name}:load")


@pytest.mark.parametrize("name", ["cifar_10", "digitz", "", "mnist "])
def test_an_unknown_name_lists_names_and_the_other_ways(name: str) -> None:
    with pytest.raises(SpecError) as error:
        load_data(name)
    assert "breast_cancer" in str(error.value)
    assert '"package.module:function" is accepted too' in str(error.value)


def test_the_nearest_name_is_offered() -> None:
    with pytest.raises(SpecError, match="did you mean 'cifar10'"):
        load_data("cifar_10")


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("absent.npz", "does not exist"),
        ("some/where", "does not exist"),
        ("a" * 5000, "cannot be opened"),
        ("x/" + "a" * 5000, "cannot be opened"),
    ],
)
def test_paths_that_lead_nowhere(path: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        load_data(path)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "weights.pt").write_bytes(b"")
    with pytest.raises(DataError, match="is of a kind that is not read"):
        load_data(tmp_path / "weights.pt")


@pytest.mark.parametrize("modality", ["text", "tabular"])
def test_a_catalogue_entry_keeps_its_modality(modality: str) -> None:
    with pytest.raises(SpecError, match="is image data"):
        load_data("digits", modality=modality)


def test_readonly_and_reversed_arrays_are_copied_without_complaint() -> None:
    rows = np.arange(6.0).reshape(2, 3)[:, ::-1]
    rows.flags.writeable = False
    assert load_data((rows, [0, 1])).inputs.tolist() == rows.tolist()


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_name_that_is_also_a_path_is_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir() if kind == "folder" else (tmp_path / "photos").write_text("")
    message = (
        rf"name of a built-in dataset and of a {kind} .*'seepage:photos' .*, or '\./photos' for the {kind}"
    )
    with pytest.raises(SpecError, match=message):
        load_data("photos")
    assert load_data("seepage:photos").name == "photos"
    if kind == "folder":
        for name in ("a", "b"):
            (tmp_path / "photos" / name).mkdir()
            Image.new("L", (8, 8)).save(tmp_path / "photos" / name / "1.png")
        assert len(load_data("./photos")) == len(load_data(Path("photos"))) == 2
    assert load_data("digits").name == "digits"  # no such path here
    with pytest.raises(SpecError, match="did you mean 'photos'"):
        load_data("seepage:photo")


@pytest.mark.parametrize("scale", [1e-12, 1e-3])
def test_pictures_that_fill_a_sliver_of_the_unit_range_have_their_own(scale: float) -> None:
    """In the unit range a guess would be as exact as the picture itself."""
    pictures = torch.rand(8, 1, 4, 4) * scale
    spec = load_data((pictures, torch.arange(8))).spec
    assert spec.value_range == (float(pictures.min()), float(pictures.max()))
    assert load_data((pictures * 0, torch.arange(8))).spec.value_range == (0.0, 1.0)  # nothing is in them


def test_a_value_range_that_the_values_do_not_fill_is_refused() -> None:
    with pytest.raises(DataError, match="nearly exact"):
        load_data((torch.rand(8, 1, 4, 4), torch.arange(8)), value_range=(0, 255))


def test_values_whose_gradients_overflow_are_refused() -> None:
    with pytest.raises(DataError, match="overflow"):
        load_data((torch.rand(8, 3) * 1e30, torch.arange(8)))


def test_a_table_without_a_header_is_refused_and_numbered_columns_are_not(tmp_path: Path) -> None:
    rows = "\n".join(f"{i}.25,-{i}.5,{'yes' if i % 2 else 'no'}" for i in range(20))
    (tmp_path / "bare.csv").write_text(rows)
    with pytest.raises(DataError, match="begins with numbers"):
        load_data(str(tmp_path / "bare.csv"))
    (tmp_path / "numbered.csv").write_text(f"0,2019,label\n{rows}")
    assert load_data(str(tmp_path / "numbered.csv")).spec.column_names == ("0", "2019")


def test_an_underscore_makes_no_number(tmp_path: Path) -> None:
    """Python reads 1_0 as ten."""
    (tmp_path / "names.csv").write_text("code,label\n1_0,a\n2_0,b\n1_0,a\n")
    spec = load_data(str(tmp_path / "names.csv")).spec
    assert len(spec.column_names) == 2  # one column for each of two categories
