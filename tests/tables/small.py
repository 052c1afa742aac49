"""The papers' tables in small, on data that come with the package: the same files with other sizes."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from seepage.core.types import InputSpec, Modality
from seepage.data import Dataset
from seepage.engine.written import read_toml
from seepage.names.tables import table_file

DIGITS, PHOTOS = {"name": "digits"}, {"name": "photos"}
REVIEWS = {"name": "tests.tables.small:reviews"}
NET = {"name": "tests.tables.small:net"}
FCNN = {"name": "fcnn", "width": 60, "hidden": [20], "initialiser": "xavier_uniform"}
TEXT = {"name": "imdb_net", "dim": 8, "width": 60, "positive": True, "initialiser": "xavier_uniform"}
TINY = {"name": "plain_convnet", "width": 2, "depth": 1, "strided": 1}


def reviews() -> Dataset:
    """40 made-up texts of 6 tokens."""
    generator = torch.Generator().manual_seed(0)
    spec = InputSpec(modality=Modality.TEXT, shape=(6,), num_classes=2, vocabulary=50, value_range=None)
    tokens = torch.randint(2, 50, (40, 6), generator=generator)
    return Dataset("made up", tokens, torch.arange(40) % 2, spec, "drawn at random")


def net() -> nn.Module:
    """A random dense network for digits whose features are as far apart as a trained one's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 10))
    with torch.no_grad():
        model[1].weight.mul_(4.0)
    return model


def small(name: str) -> dict[str, Any]:
    """The table's file as a dict, with the changes of `CHANGES`."""
    table = copy.deepcopy(read_toml(table_file(name)))
    CHANGES[name](table)
    return table


def _first_group(table: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    table["groups"] = table["groups"][:1]
    group: dict[str, Any] = table["groups"][0]
    group["data"] = data
    return group


def _table2(table):
    _first_group(table, DIGITS)
    table |= {"protocol": {"batch_size": 12}, "model": {**FCNN, "hidden": [20, 10]}}


def _table3(table):
    table |= {"model": TEXT, "vary": {"protocol.batch_size": [4, 8]}}
    for group in table["groups"]:
        group["data"] = REVIEWS
        del group["paper"]
    table["groups"][1]["attacks"][0]["scale"] = 0.8


def _table4(table):
    group = _first_group(table, DIGITS)
    table["protocol"] |= {"batch_size": 10, "clients": 3}
    table["model"] |= {"width": 40, "hidden": [20]}
    group["model"], group["probes"] = {"lr": 0.06}, {"lr": 0.06}
    group["rows"] = group["rows"][:3]


def _table5(table):
    group = _first_group(table, DIGITS)
    table |= {"protocol": {"batch_size": 12}, "model": FCNN}
    group["rows"] = [row for row in group["rows"] if row["label"] in ("s = 0.600", "s = 0.800")]


def _table6(table):
    group = _first_group(table, DIGITS)
    table |= {"model": FCNN, "vary": {"model.width": [30, 60], "protocol.batch_size": [5, 12]}}
    del group["paper"]


def _table9(table):
    table["model"] = FCNN
    for group in table["groups"]:
        group["data"] = DIGITS
        group["rows"] = [group["rows"][0], group["rows"][1]]
        for row, clients in zip(group["rows"], (1, 3), strict=True):
            row |= {"label": f"B = 5, Num = {clients}", "protocol": {"batch_size": 5, "clients": clients}}
            if "attacks" in row:
                row["attacks"], row["probes"][0]["batches"] = {"clients": [clients - 1]}, clients


def _section84(table):
    group = _first_group(table, DIGITS)
    later = ("traps made for", "users of Flower")
    group["rows"] = [row for row in group["rows"] if not any(words in row["label"] for words in later)]
    table |= {"protocol": {"batch_size": 12}, "model": FCNN}


def _section85(table):
    table |= {"model": FCNN, "groups": table["groups"][:2]}
    for group, size in zip(table["groups"], (1, 6), strict=True):
        group |= {"title": f"MNIST, B = {size}", "protocol": {"batch_size": size}}
        group["data"] = {**DIGITS, "last": 1000}
        for row in group["rows"]:
            few = {"inverting_gradients": {"steps": 4}, "idlg": {"steps": 2}}
            row["attacks"][0] |= few.get(row["label"], {})


def _figure4(table):
    table |= {"data": DIGITS, "model": FCNN | {"hidden": [200]}}


def _figures(table):
    group = _first_group(table, DIGITS)
    table |= {"protocol": {"batch_size": 12}, "model": FCNN}
    group["rows"][0]["label"] = "all, s = 0.7"
    threes = {"label": "threes, s = 0.7", "attacks": {"scale": 0.7}}
    table["groups"].append({"title": "threes", "data": {**DIGITS, "classes": ["3"]}, "rows": [threes]})


def _honest(table):
    """Its answer is known: with so few examples all are read, and nothing else is claimed."""
    _first_group(table, DIGITS)["rows"] = [{"label": "eight", "protocol": {"batch_size": 8}}]
    table["model"] = {"name": "fcnn", "width": 100, "hidden": [20]}


def _beyond(table):
    traps = [{"name": "trap_weights", "read": read} for read in ("bare", "peel")]
    scaled = [{**trap, "scale": 0.8} for trap in traps]
    evil, six = {"threat": "malicious_server"}, {"protocol": {"batch_size": 6}}
    wide = {"protocol": {"batch_size": 12}}
    first = {"model": {"initialiser": {"": "xavier_uniform", "dense0": "gaussian_0.5"}}}
    digits = [
        {"label": "traps", "attacks": scaled, **evil, **wide},
        {"label": "ladder", "attacks": traps, **evil, **wide},
        {"label": "passive", **six},
        {"label": "first layer", **first, **six},
    ]
    texts = [{"label": "texts", **six}, {"label": "texts, traps", "attacks": scaled, **evil, **six}]
    table["groups"] = [
        {"title": "MNIST", "data": DIGITS, "model": FCNN, "rows": digits},
        {"title": "IMDB", "data": REVIEWS, "model": TEXT, "rows": texts},
    ]


def _inverted(table, steps=3):
    table |= {"data": {**PHOTOS, "last": 1000}, "model": TINY}
    table["attacks"][0]["steps"] = steps


def _architecture(table):
    _inverted(table)
    width, _, _, activation = table["groups"]
    width["rows"] = [{"label": "2", "model": {"width": 2}}]
    activation["rows"] = [activation["rows"][0], activation["rows"][-1]]
    table["groups"] = [width, activation]


def _multi_step(table):
    _inverted(table)
    table["groups"] = table["groups"][:2]
    for group, count in zip(table["groups"], (1, 2), strict=True):
        group["title"] = f"learning rate 0.001, {count} picture{'s' if count > 1 else ''}"
        group["protocol"] = {"batch_size": count, "lr": 0.001}
        group["rows"] = [
            {"label": "1 local step", "protocol": {"local_epochs": 1}},
            {"label": "3 local steps", "protocol": {"local_epochs": 3}},
        ]


def _batch(table):
    _inverted(table, 2)
    (group,) = table["groups"] = table["groups"][:1]
    group |= {"title": "CIFAR-100, 1 convolutions of 2 channels", "model": {}}
    group["rows"] = [{"label": f"{n} pictures", "protocol": {"batch_size": n}} for n in (2, 3)]


def _single_image(table):
    table["data"] = {**PHOTOS, "last": 1000}
    for group, steps in zip(table["groups"], ((5, 3), (1, 2)), strict=True):
        for attack, number in zip(group["attacks"], steps, strict=True):
            attack |= {"steps": number}
            attack.pop("step_size", None)
            if attack["name"] == "inverting_gradients":
                attack["tv"] = 0.1
    table["groups"][0]["rows"][1]["model"] |= {"data": PHOTOS, "steps": 2}


def _on_digits(table, **probe):
    table |= {"data": DIGITS, "model": NET}
    table["probes"][0] |= probe


def _wen_table1(table):
    _on_digits(table, estimate_users=20, attacked_users=10)
    table["groups"][0]["rows"][-1]["probes"].pop("attacked_users")
    table["groups"][0]["rows"][-1]["most_seeds"] = 3


def _wen_figure4(table):
    _on_digits(table, attacked_users=5)
    (group,) = table["groups"]
    group["rows"] = [group["rows"][0], group["rows"][-1]]


def _wen_figure5(table):
    features, whole, _ = table["groups"]
    options = {"of": DIGITS, "network": NET}
    features["data"] = {"name": "seepage.tables.features:features_of", **options}
    features["model"] = {"name": "seepage.tables.features:classification_layer", **options}
    features["rows"] = [row for row in features["rows"] if row["label"] in ("batch 4", "batch 8")]
    whole |= {"data": DIGITS, "model": NET}
    whole["rows"] = [{**whole["rows"][0], "label": "batch 4", "protocol": {"batch_size": 4}}]
    table["groups"] = [features, whole]


def _wen_table2(table):
    group = _first_group(table, PHOTOS)
    group["title"] = "LeNet"
    group["rows"] = group["rows"][:2]
    for row, what in zip(group["rows"], ("without fishing", "fished"), strict=True):
        assert row["label"].startswith(what)
        row |= {"label": f"{what}, batch 4", "protocol": {"batch_size": 4}, "most_seeds": 1}
    group["rows"][0]["attacks"][0]["steps"] = 3


def _wen_table3(table):
    table["data"] = PHOTOS
    table["model"]["dim"] = 192
    for group in table["groups"]:
        group["rows"] = group["rows"][:2]


CHANGES = {
    "beyond/honest-batches": _honest,
    "boenisch2021/beyond": _beyond,
    "boenisch2021/figure4": _figure4,
    "boenisch2021/figures9-11": _figures,
    "boenisch2021/section8.4": _section84,
    "boenisch2021/section8.5": _section85,
    "boenisch2021/table2": _table2,
    "boenisch2021/table3": _table3,
    "boenisch2021/table4": _table4,
    "boenisch2021/table5": _table5,
    "boenisch2021/table6": _table6,
    "boenisch2021/table9": _table9,
    "geiping2020/architecture": _architecture,
    "geiping2020/batch": _batch,
    "geiping2020/multi-step": _multi_step,
    "geiping2020/single-image": _single_image,
    "wen2022/figure4": _wen_figure4,
    "wen2022/figure5": _wen_figure5,
    "wen2022/table1": _wen_table1,
    "wen2022/table2": _wen_table2,
    "wen2022/table3": _wen_table3,
}
SEEDS = {"boenisch2021/section8.4": 3, "wen2022/table3": 1}
