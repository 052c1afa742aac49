"""Memory of an audit of adapters on a large frozen base: the base is to be held once, whatever is copied.

    python benchmarks/frozen_base.py [--layers 20] [--width 2048] [--rank 16] [--rounds 3] [--dtype bfloat16]

A Llama-like network with random weights and LoRA adapters (query and value) is audited over several rounds by
`exact_text`. Printed: the bytes of the base and of one round's adapters, and the process's peak beyond what
it had before the network was built. The defaults have a base of 1.35 billion parameters. It needs 4 GB.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import nn

import seepage


def peak() -> float:
    """Of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def size(model: nn.Module, *, trained: bool) -> float:
    return sum(p.nbytes for p in model.parameters() if p.requires_grad == trained) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, default in (("layers", 20), ("width", 2048), ("rank", 16), ("rounds", 3), ("vocabulary", 4000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    torch.set_num_threads(1)
    import peft
    import transformers

    def build(layers: int, width: int) -> nn.Module:
        config = transformers.LlamaConfig(
            vocab_size=args.vocabulary,
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=layers,
            num_attention_heads=16,
            max_position_embeddings=32,
            pad_token_id=0,
            num_labels=2,
        )
        torch.set_default_dtype(getattr(torch, args.dtype))  # so that it is never there in float32
        try:
            base = transformers.LlamaForSequenceClassification(config)
        finally:
            torch.set_default_dtype(torch.float32)
        adapters = peft.LoraConfig(r=args.rank, target_modules=["q_proj", "v_proj"], task_type="SEQ_CLS")
        model: nn.Module = peft.get_peft_model(base, adapters)
        return model

    def audit(layers: int, width: int, folder: str) -> seepage.api.AuditResult:
        return seepage.audit(
            model=lambda: build(layers, width),
            data={"input_ids": texts, "labels": torch.arange(40) % 2},
            attacks=["exact_text"],
            seeds=1,
            protocol={"batch_size": 1, "rounds": args.rounds, "lr": 1e-4},
            out=Path(folder) / "run",
            engine="here",
            advice=False,
        )

    texts = torch.randint(3, args.vocabulary, (40, 8), generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as folder:
        audit(2, 64, folder)  # what is imported is no part of the network
    before, began = peak(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        log = audit(args.layers, args.width, folder)
    for cell in log.cells:
        print(cell.attack.name, cell.status, cell.reason, *cell.notes, sep="\n  ")
    most, seconds = peak(), time.process_time() - began
    model = build(args.layers, args.width)
    base, adapter = size(model, trained=False), size(model, trained=True)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters / 1e9:.2f} billion parameters, {args.rounds} rounds, {seconds:.0f} CPU seconds")
    print(f"base {base:.0f} MB, one round's adapters {adapter:.1f} MB")
    print(f"peak beyond the start {most - before:.0f} MB")
    print(f"peak over base: {(most - before) / base:.2f}")


if __name__ == "__main__":
    main()
