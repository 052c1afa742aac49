"""The user's own .npz, .csv and picture folders, good and bad."""

from __future__ import annotations

import io
import struct
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from seepage.core.errors import DataError, SpecError
from seepage.core.types import Modality
from seepage.data import files, load_data, standardised

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (4, 8, 6, 3), dtype=np.uint8)


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path / "my.npz", **arrays)
    return path / "my.npz"


@pytest.mark.parametrize("keys", [("inputs", "labels"), ("x", "y"), ("images", "targets"), ("data", "y")])
@pytest.mark.parametrize("layout", ["HWC", "CHW"])
def test_npz_pictures_in_either_layout_and_under_any_key(
    tmp_path: Path, keys: tuple[str, str], layout: str
) -> None:
    stored = PIXELS if layout == "HWC" else PIXELS.transpose(0, 3, 1, 2)
    data = load_data(npz(tmp_path, **{keys[0]: stored, keys[1]: np.array([0, 1, 2, 0])}))
    assert data.inputs.dtype is torch.float32
    np.testing.assert_allclose(data.inputs.numpy() * 255, PIXELS.transpose(0, 3, 1, 2), atol=1e-4)
    assert (data.name, data.source, data.spec.num_classes) == ("my", "my.npz", 3)


def test_npz_floats_are_kept_and_the_range_of_pictures_observed(tmp_path: Path) -> None:
    rows = np.array([[-2.0, 0.5], [3.0, 1.0]])
    data = load_data(str(npz(tmp_path, x=rows, y=np.array([0.0, 1.0]))))
    assert data.inputs.tolist() == rows.tolist()
    assert data.spec.modality is Modality.TABULAR
    assert data.spec.value_range is None  # columns have no common one
    assert data.batch(torch.arange(2)).inputs.tolist() == rows.tolist()  # arrays are fed as they are
    data = load_data(str(npz(tmp_path, x=rows[:, None, :], y=np.array([0.0, 1.0]))))
    assert data.spec.modality is Modality.IMAGE
    assert data.spec.value_range == (-2.0, 3.0)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": PIXELS}, "name the missing array one of labels, y, targets"),
        ({"y": np.array([0, 1])}, "one of inputs, x, images, data"),
        ({"x": np.array([{"a": 1}, 2], dtype=object), "y": np.array([0, 1])}, "cannot be read as .npz"),
        ({"x": np.array(["a", "b"]), "y": np.array([0, 1])}, "not one array of numbers"),
        ({"x": np.zeros((2, 2), dtype=complex), "y": np.array([0, 1])}, "complex"),
        ({"x": np.zeros((3, 2)), "y": np.array([0, 1])}, "3 inputs but 2 labels"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0)}, "no values"),
        ({"x": np.zeros(3), "y": np.array([0, 1, 0])}, "reshape"),
        ({"x": np.zeros((3, 1, 2, 2, 2)), "y": np.array([0, 1, 0])}, "nn.Unflatten(1, (1, 2, 2, 2))"),
        ({"x": np.zeros((2, 2)), "y": np.zeros((2, 3, 3))}, "every pixel or step"),
        ({"x": np.zeros((2, 2)), "y": np.array([np.nan, 1])}, "whole numbers"),
        ({"x": np.zeros((2, 2)), "y": np.array([np.inf, 1])}, "whole numbers"),
        ({"x": np.zeros((2, 2)), "y": np.eye(2)}, "argmax"),
        ({"x": np.zeros((2, 2)), "y": np.array([0, 0])}, "two classes"),
        ({"x": np.zeros((2, 2)), "y": np.array([-1, 1])}, "must lie in"),
        ({"x": np.array([[0.0, np.nan], [1, 2]]), "y": np.array([0, 1])}, "NaN"),
        ({"x": np.array([[0.0, 1e300], [1, 2]]), "y": np.array([0, 1])}, "infinite"),
        ({"x": np.full((2, 1, 4, 5), 7.0), "y": np.array([0, 1])}, "value range 7 to 7"),
        ({"x": np.zeros((2, 784), dtype=np.uint8), "y": np.array([0, 1])}, "flattened pictures"),
        ({"x": np.zeros((2, 3, 5, 3), dtype=np.uint8), "y": np.array([0, 1])}, "layout='CHW'"),
        ({"x": np.zeros((2, 2)), "y": np.array([0, 1]), "class_names": ["a", "b", "c"]}, ""),
    ],
)
def test_bad_npz(tmp_path: Path, arrays: dict[str, Any], sentence: str) -> None:
    path = npz(tmp_path, **arrays)
    if not sentence:  # a third, unused class name is no fault
        assert load_data(path).spec.num_classes == 3
        return
    with pytest.raises(DataError) as error:
        load_data(path)
    assert sentence in str(error.value)
    assert str(tmp_path) not in str(error.value)
    assert "\n" not in str(error.value)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cut=st.integers(0, 700), flips=st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), max_size=6)
)
def test_a_damaged_npz_is_a_dataerror_or_a_dataset(
    tmp_path: Path, cut: int, flips: list[tuple[int, int]]
) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=np.arange(8.0).reshape(4, 2), y=np.array([0, 1, 0, 1]))
    content = bytearray(buffer.getvalue())
    for position, value in flips:
        content[position % len(content)] = value
    path = tmp_path / "damaged.npz"
    path.write_bytes(content[: len(content) - cut] if not flips else content)
    try:
        assert len(load_data(path)) > 0
    except DataError as error:
        assert "damaged" in str(error)  # either outcome is right


def test_a_pickle_in_an_npz_is_never_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "exploded",))

    path = npz(tmp_path, x=np.array([Bomb()], dtype=object), y=np.array([0]))
    with pytest.raises(DataError):
        load_data(path)
    assert not (tmp_path / "exploded").exists()


def test_an_npz_that_would_fill_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "big.npz", x=np.zeros((1000, 100)), y=np.arange(1000) % 2)
    assert len(load_data(tmp_path / "big.npz")) == 1000
    monkeypatch.setattr(files, "MOST_BYTES", 100_000)
    with pytest.raises(DataError, match="unpacks to"):
        load_data(tmp_path / "big.npz")


def test_an_npz_whose_header_lies_about_its_size(tmp_path: Path) -> None:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (4611686018427387904, 2), }\n"
    member = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    with zipfile.ZipFile(tmp_path / "liar.npz", "w") as archive:
        archive.writestr("x.npy", member)
        archive.writestr("y.npy", member)
    with pytest.raises(DataError, match="cannot be read"):
        load_data(tmp_path / "liar.npz")


def test_a_single_array_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", PIXELS)
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    with pytest.raises(DataError, match="single array"):
        load_data(tmp_path / "one.npz")


CSV = "age,height,label\n30,1.5,yes\n40,1.75,no\n50,1.25,yes\n"


def table(path: Path, text: str | bytes) -> Path:
    (path / "t.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    return path / "t.csv"


def test_csv_with_categories_as_labels(tmp_path: Path) -> None:
    data = load_data(table(tmp_path, CSV))
    assert data.inputs.tolist() == [[30, 1.5], [40, 1.75], [50, 1.25]]
    assert data.labels.tolist() == [1, 0, 1]
    assert data.spec.class_names == ("no", "yes")
    assert data.spec.column_names == ("age", "height")
    assert data.spec.value_range is None
    assert (data.name, data.source) == ("t", "t.csv, whose column 'label' was taken for the label")
    assert load_data(table(tmp_path, CSV), label="label").source == "t.csv"


def test_csv_label_column_is_named_known_or_last(tmp_path: Path) -> None:
    path = table(tmp_path, "Target;a;b\n0;1;0\n1;2;1\n")
    assert load_data(path, delimiter=";").spec.column_names == ("a", "b")
    assert load_data(path, delimiter=";", label="b").spec.column_names == ("Target", "a")
    assert load_data(table(tmp_path, "\ufeffa,b\n1.5,0\n\n2,1\n")).spec.column_names == ("a",)


def test_a_csv_is_standardised_by_the_rows_that_are_named(tmp_path: Path) -> None:
    data = load_data(table(tmp_path, CSV))
    with pytest.raises(DataError, match="say by which public rows"):
        data.batch(torch.arange(3))
    public = torch.tensor([0, 2])
    batch = standardised(data, public).batch(public).inputs
    torch.testing.assert_close(batch.mean(0), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(batch.std(0, correction=0), torch.ones(2))
    changed = replace(data, inputs=data.inputs.index_fill(0, torch.tensor([1]), 1e6))
    assert torch.equal(standardised(changed, public).batch(public).inputs, batch)  # row 1 had no part in it
    raw = load_data(table(tmp_path, CSV), standardise=False)
    assert torch.equal(standardised(raw, public).batch(torch.arange(3)).inputs, data.inputs)
    with pytest.raises(SpecError, match="1 of its 3 are set aside"):
        standardised(data, public[:1])
    given = load_data(table(tmp_path, CSV), mean=[1.0, 2.0], std=1.0)
    assert given.batch(torch.arange(1)).inputs.tolist() == [[29.0, -0.5]]


def test_csv_labels_minus_one_and_one_become_classes(tmp_path: Path) -> None:
    data = load_data(table(tmp_path, "a,y\n1,-1\n2,1\n3,-1\n"))
    assert data.labels.tolist() == [0, 1, 0]
    assert data.spec.class_names == ("-1", "1")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("a,label\n", "no rows"),
        ("a,a,label\n1,2,0\n", "repeated column names"),
        ("1,2\n3,4\n", "column names on its first line"),
        ("a,b,label\n1,2,0\n1,0\n", "line 3: 2 cells under 3"),
        ("a,b,label\n1,2,0\n1,red,1\n", "line 3, column 'b': 'red'"),
        ("a,b,label\n1,2,0\n1,,1\n", "line 3, column 'b': an empty cell"),
        ("a,b,label\n1,nan,0\n1,2,1\n", "line 2, column 'b': 'nan'"),
        ("a,label\n1,\n2,1\n", "empty cells"),
        ("a,price\n1,2.5\n2,3\n", "holds 2.5, which is not a class"),
        ("a,label\n1,nan\n2,1\n", "which is not a class"),
        ("label\n1\n0\n", "no column besides the label"),
        ("a,label\n1,x\n2,x\n", "two classes"),
        ("a,id\n1,123456789012\n2,5\n", "identifiers"),
        (b"a,label\n\xff\xfe,1\n", "cannot be read as CSV"),
        ('a,label\n"1,2\n', "cannot be read as CSV"),
    ],
)
def test_bad_csv(tmp_path: Path, text: str | bytes, sentence: str) -> None:
    with pytest.raises(DataError) as error:
        load_data(table(tmp_path, text))
    assert sentence in str(error.value)
    assert str(tmp_path) not in str(error.value)


def picture(path: Path, *, size: tuple[int, int] = (8, 8), mode: str = "RGB", colour: Any = 0) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    Image.new(mode, size, colour).save(path)


def test_class_subfolders_become_labels(tmp_path: Path) -> None:
    picture(tmp_path / "dog/b.png", colour=(255, 0, 0))
    picture(tmp_path / "cat/a.png", colour=(0, 255, 0))
    picture(tmp_path / "dog/a.png", colour=(0, 0, 51), size=(8, 8))
    data = load_data(tmp_path)
    assert data.spec.class_names == ("cat", "dog")
    assert data.labels.tolist() == [0, 1, 1]
    assert data.inputs[:, :, 3, 3].tolist() == [[0, 1, 0], [0, 0, pytest.approx(0.2)], [1, 0, 0]]
    assert data.source == f"folder {tmp_path.name}"
    assert load_data(tmp_path, limit=2).labels.tolist() == [0, 1]


def test_labels_csv_and_a_size_and_grey_pictures(tmp_path: Path) -> None:
    picture(tmp_path / "p.png", mode="L", size=(20, 10), colour=255)
    picture(tmp_path / "q.png", mode="L", size=(8, 16), colour=0)
    (tmp_path / "labels.csv").write_text("file,class_index\nq.png,1\np.png,0\n")
    data = load_data(tmp_path, size=8)
    assert data.inputs.shape == (2, 1, 8, 8)
    assert data.inputs.amax((1, 2, 3)).tolist() == [0.0, 1.0]
    assert data.labels.tolist() == [1, 0]
    with pytest.raises(DataError, match="give size="):
        load_data(tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a picture", b"\x89PNG\r\n\x1a\n" + b"\0" * 30, b"%!PS-Adobe"])
def test_an_unreadable_picture_is_named(tmp_path: Path, content: bytes) -> None:
    picture(tmp_path / "a/good.png")
    (tmp_path / "a/broken.png").write_bytes(content)
    with pytest.raises(DataError, match=r"broken\.png cannot be read as a picture"):
        load_data(tmp_path)


def test_a_truncated_picture_is_named(tmp_path: Path) -> None:
    noise = Image.fromarray(RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8))
    (tmp_path / "a").mkdir()
    for name in ("cut.png", "cut.jpg"):
        buffer = io.BytesIO()
        noise.save(buffer, format=name[-3:].replace("jpg", "jpeg"))
        (tmp_path / "a" / name).write_bytes(buffer.getvalue()[: len(buffer.getvalue()) // 2])
        with pytest.raises(DataError, match=name):
            load_data(tmp_path)
        (tmp_path / "a" / name).unlink()


def test_sixteen_bit_pictures_are_refused_and_not_clipped(tmp_path: Path) -> None:
    picture(tmp_path / "a/deep.png", mode="I;16", colour=40_000)
    with pytest.raises(DataError, match="8-bit"):
        load_data(tmp_path)


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ("name,label\np.png,0\n", "one called file"),
        ("file,label\nmissing.png,0\n", "does not hold"),
        ("file,label\n../outside.png,0\n", "is not in"),
        ("file,label\n/etc/hostname,0\n", "is not in"),
    ],
)
def test_bad_labels_csv(tmp_path: Path, labels: str, sentence: str) -> None:
    picture(tmp_path / "outside.png")
    picture(tmp_path / "set/p.png")
    (tmp_path / "set/labels.csv").write_text(labels)
    with pytest.raises(DataError, match=sentence):
        load_data(tmp_path / "set")


def test_empty_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="neither class subfolders"):
        load_data(tmp_path)
    (tmp_path / "cat").mkdir()
    with pytest.raises(DataError, match="holds no picture"):
        load_data(tmp_path)


@pytest.mark.parametrize("options", [{"size": 0}, {"limit": -1}, {"size": 2.5}, {"modality": "text"}])
def test_bad_folder_options(tmp_path: Path, options: dict[str, Any]) -> None:
    picture(tmp_path / "a/p.png")
    with pytest.raises(SpecError):
        load_data(tmp_path, **options)


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_a_table_that_is_divided_otherwise_is_told_by_its_mark(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "people.csv"
    path.write_text(mark.join(["age", "income", "label"]) + "\n" + mark.join(["41", "1.5", "a"]) + "\n")
    with pytest.raises(DataError, match="seems to be divided by") as raised:
        load_data(path)
    assert f"give delimiter={mark!r}" in str(raised.value)


@pytest.mark.parametrize(("first", "fits"), [(2**24 - 4, True), (2**24, False), (10**17, False)])
def test_whole_numbers_that_a_model_s_input_cannot_tell_apart_are_refused(
    tmp_path: Path, first: int, fits: bool
) -> None:
    """Two people whose numbers are the same in float32 would both be recovered exactly by either's."""
    path = tmp_path / "people.csv"
    path.write_text("number,age,label\n" + "".join(f"{first + i},{20 + i},{i % 2}\n" for i in range(4)))
    if fits:
        assert load_data(path).inputs[:, 0].unique().numel() == 4
    else:
        with pytest.raises(DataError, match="column 'number' holds whole numbers that differ beyond"):
            load_data(path)
