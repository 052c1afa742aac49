"""Texts beyond the width, by a dishonest server: what `decepticons` reads, what is false, and what it costs.

    SEEPAGE_DATA=... python benchmarks/decepticons.py [--only "gpt2 128"] [--batches 2] [--first-seed 130000]

GPT-2- and BERT-like networks of four layers with random weights; openings of IMDB reviews as in
`exact_text.py`, every fourth one cut short. One client, one gradient in float32, one thread; CPU seconds of
crafting and reading. Beside it the share of tokens that are right where a server writes the batch's own
commonest token everywhere, which flatters the guess, and what `exact_text` says of the same texts behind
honest weights. Seed 0 was looked at while the attack was made, on networks 64 and 128 wide.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import Tensor, nn

from exact_text import batch, texts, tokens_of
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

VOCABULARY = 30522
LINES = (
    ("gpt2", 128, 8, 64, "next_token"),
    ("gpt2", 128, 8, 64, "cross_entropy"),
    ("bert", 128, 8, 64, "cross_entropy"),
    ("gpt2", 64, 16, 32, "next_token"),
    ("gpt2", 256, 16, 64, "next_token"),
)


def network(family: str, width: int, length: int, loss: str) -> nn.Module:
    import transformers

    ends: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "num_labels": 2,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    built: Any
    config: Any
    if family == "gpt2":
        config = transformers.GPT2Config(n_embd=width, n_layer=4, n_head=4, n_positions=length, **ends)
        kind = "GPT2LMHeadModel" if loss == "next_token" else "GPT2ForSequenceClassification"
        built = getattr(transformers, kind)(config)
    else:
        config = transformers.BertConfig(
            hidden_size=width,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=4 * width,
            max_position_embeddings=length,
            **ends,
        )
        built = transformers.BertForSequenceClassification(config)
    model: nn.Module = built
    return model


def line(family: str, width: int, loss: str, ids: Tensor, seed: int) -> tuple[int, int, int, int, float]:
    """Texts right, shown and false, claimed, claimed and false, and CPU seconds; the rest is printed."""
    torch.manual_seed(seed)
    classes = 1 if loss == "next_token" else 2
    spec = InputSpec(
        modality=Modality.TEXT,
        shape=(ids.shape[1],),
        num_classes=classes,
        value_range=None,
        vocabulary=VOCABULARY,
    )
    model = build_model(network(family, width, ids.shape[1], loss), spec)
    local = LocalTraining(loss=loss)
    known = Knowledge(input=spec, loss=loss, local=local, seed=seed)
    private = Batch(ids, torch.arange(len(ids)) % classes)
    honest = Exchange(
        broadcast=Broadcast(model), update=local_update(Broadcast(model), private, local), clients=(0,)
    )
    try:
        beside = f"{len(ATTACKS['exact_text']().run([honest], known))} texts"
    except NotApplicable as reason:
        beside = f"refused: {str(reason)[:60]}..."
    attack, began = ATTACKS["decepticons"](), time.process_time()
    crafted = attack.next_model(model, [], known)
    assert crafted is not None
    seconds = time.process_time() - began
    sent = local_update(Broadcast(crafted.model), private, local)
    began = time.process_time()
    seen = Exchange(broadcast=Broadcast(crafted.model), update=sent, clients=(0,), secret=crafted.secret)
    result = attack.run([seen], known)
    seconds += time.process_time() - began
    truth, found = {tuple(row) for row in ids.tolist()}, [tuple(row) for row in result.values.tolist()]
    assert result.claimed is not None
    claimed = [row for row, sure in zip(found, result.claimed.tolist(), strict=True) if sure]
    there = ids[ids != PADDING]
    usual = float((there == there.mode().values).double().mean())
    print(
        f"  seed {seed}: {result.notes[0]} Honest weights, exact_text: {beside} Guess {usual:.3f}.",
        flush=True,
    )
    right = len(truth & set(found))
    return right, len(set(found) - truth), len(claimed), len(set(claimed) - truth), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--batches", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=130000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    reviews, encode = texts(), tokens_of()
    for family, width, count, length, loss in LINES:
        title = f"{family} {width} wide, {count} x {length}, {loss}"
        if args.only not in title:
            continue
        seeds = range(args.first_seed, args.first_seed + args.batches)
        each = [line(family, width, loss, batch(reviews, encode, count, length, s), s) for s in seeds]
        right, false, claimed, wrong = (sum(one[k] for one in each) for k in range(4))
        print(
            f"{title}: {right} of {count * len(each)} texts, {false} shown and false, {claimed} claimed, "
            f"{wrong} of them false; CPU seconds {', '.join(f'{one[4]:.1f}' for one in each)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
