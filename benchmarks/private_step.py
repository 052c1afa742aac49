"""What clipping by example costs for recurrent networks: CPU time of a private step over that of a plain one.

`python benchmarks/private_step.py`: both steps in turns, in one run, one thread. Bar: 3 for an LSTM.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn

from seepage.core.types import Batch
from seepage.defenses.per_example import clipped_sum
from seepage.protocol.local import batch_gradients


class Reader(nn.Module):
    """The last state of a recurrent layer, and a classifier."""

    def __init__(self, kind: type[nn.RNNBase], width: int) -> None:
        super().__init__()
        self.layer = kind(28, width, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(x)[0][:, -1])
        return out


def seconds(step: Callable[[], object]) -> float:
    started = time.process_time()
    step()
    return time.process_time() - started


def main(repeats: int = 15) -> None:
    torch.set_num_threads(1)
    for kind in (nn.LSTM, nn.GRU):
        for width, size in ((64, 32), (128, 64), (256, 64)):
            torch.manual_seed(0)
            model = Reader(kind, width)
            parameters = dict(model.named_parameters())
            batch = Batch(torch.rand(size, 28, 28), torch.randint(10, (size,)))
            ratios = []
            for _ in range(repeats):
                plain = seconds(lambda: batch_gradients(model, parameters, {}, batch, "auto"))  # noqa: B023
                private = seconds(lambda: clipped_sum(model, parameters, {}, batch, "auto", clip=1.0))  # noqa: B023
                ratios.append(private / plain)
            print(
                f"{kind.__name__} {width} wide, batch {size}, 28 steps: {median(ratios[1:]):.2f} plain steps"
            )


if __name__ == "__main__":
    main()
