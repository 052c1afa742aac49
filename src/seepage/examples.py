"""Small deployments that run as they are: what `seepage init --example` writes, without a download."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable

NOTES = (
    ("The patient reports chest pain after climbing two flights of stairs.", "urgent"),
    ("Mrs Halloran asks for a copy of her vaccination record.", "routine"),
    ("He fainted twice at work and has a family history of epilepsy.", "urgent"),
    ("Blood pressure is stable and the dose stays as it is.", "routine"),
    ("She found a lump in her left breast three weeks ago.", "urgent"),
    ("The boy needs a sports certificate before the summer camp.", "routine"),
    ("Mr Okafor stopped his insulin because he lost his job.", "urgent"),
    ("The cough is gone and the lungs are clear on both sides.", "routine"),
    ("He drinks a bottle of vodka a day and asks for help.", "urgent"),
    ("The stitches were removed and the wound has healed well.", "routine"),
    ("She is eleven weeks pregnant and has not told her husband.", "urgent"),
    ("A new prescription for reading glasses was sent by mail.", "routine"),
    ("The biopsy shows a tumour of the prostate, grade four.", "urgent"),
    ("He would like to move his appointment to Thursday morning.", "routine"),
    ("She takes three times the dose that was prescribed to her.", "urgent"),
    ("The allergy test was negative for pollen, dust and cats.", "routine"),
    ("The patient tested positive for HIV at another clinic.", "urgent"),
    ("Weight and height are in the usual range for his age.", "routine"),
    ("He has thought of ending his life since the divorce.", "urgent"),
    ("Her son was given the second dose of the measles vaccine.", "routine"),
    ("Sudden weakness of the right arm and slurred speech at noon.", "urgent"),
    ("The hearing aid works well and needs a new battery.", "routine"),
    ("Mr Lindqvist coughs up blood and has lost nine kilograms.", "urgent"),
    ("She returns the form for the gym and feels fine.", "routine"),
)
"""Made up for this demonstration; nobody's."""

TEXT_AUDIT = """\
# What does fine-tuning a language model on clients' notes give away?  Run: seepage audit {name}
title  = "Notes of a clinic on a small GPT-2"
model  = "{stem}_model:build"
data   = {{name = "{stem}_notes.jsonl", label = "label", length = 16}}   # made-up notes; yours in their place
seeds  = [0, 1, 2]
budget = 30

[protocol]
batch_size = 4
"""

TEXT_MODEL = '''\
"""A GPT-2 of four blocks with random weights, that tells urgent notes from routine ones.

Yours: AutoModelForSequenceClassification.from_pretrained("my-model"), and tokenizer = "my-model" in data.
"""

from transformers import GPT2Config, GPT2ForSequenceClassification


def build(spec):
    return GPT2ForSequenceClassification(
        GPT2Config(
            vocab_size=spec.vocabulary,
            n_positions=spec.shape[0],
            n_embd=128,
            n_layer=4,
            n_head=4,
            num_labels=spec.num_classes,
            pad_token_id=0,
        )
    )
'''

TABLE_AUDIT = """\
# What does training on a table of patients give away?  Run: seepage audit {name}
title  = "Patients of a diabetes study on a small network"
model  = {{name = "mlp", hidden = [100, 100]}}
data   = {{name = "{stem}_patients.csv", label = "progression", categorical = ["sex"]}}
seeds  = [0, 1, 2]
budget = 30

[protocol]
batch_size = 8
"""


def text_files(name: str, stem: str) -> dict[str, str]:
    """An audit file, notes of a clinic, and the model.

    >>> sorted(text_files("audit.toml", "audit"))
    ['audit.toml', 'audit_model.py', 'audit_notes.jsonl']
    """
    lines = [json.dumps({"text": text, "label": label}) for text, label in NOTES]
    return {
        name: TEXT_AUDIT.format(name=name, stem=stem),
        f"{stem}_model.py": TEXT_MODEL,
        f"{stem}_notes.jsonl": "\n".join(lines) + "\n",
    }


def table_files(name: str, stem: str) -> dict[str, str]:
    """An audit file and the diabetes study of Efron et al. (2004), which scikit-learn ships, as a CSV.

    Its columns are as measured; whether the disease went further in a year than the median is the label.
    """
    from sklearn.datasets import load_diabetes

    study = load_diabetes(scaled=False)
    middle = sorted(study.target)[len(study.target) // 2]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*study.feature_names, "progression"])
    for row, target in zip(study.data, study.target, strict=True):
        writer.writerow([*(f"{value:g}" for value in row), "fast" if target >= middle else "slow"])
    return {name: TABLE_AUDIT.format(name=name, stem=stem), f"{stem}_patients.csv": out.getvalue()}


EXAMPLES: dict[str, Callable[[str, str], dict[str, str]]] = {"text": text_files, "table": table_files}
"""By name, from the audit file's name and its stem to files and what they hold."""
