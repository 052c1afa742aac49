"""Whether an inversion can fit into memory at all, told before it starts; and memory that steps reuse."""

from __future__ import annotations

import os
from dataclasses import replace

import torch
from torch import Tensor

from seepage.attacks.inversion.objective import Candidates
from seepage.attacks.inversion.problem import Problem
from seepage.attacks.inversion.simulate import simulated_update
from seepage.core.errors import NotApplicable

SMALL_BATCH = 8
"""Examples below which nothing is estimated. Cost: measuring would take as long as trying."""


LARGEST_BLOCK = 31 * 2**20
"""Bytes. Derived: just below what the GNU allocator takes into account, 4 * 1024 * 1024 * sizeof(long)
(mallopt(3), DEFAULT_MMAP_THRESHOLD_MAX)."""


def keep_freed_memory() -> None:
    """Let the process keep what a step frees, for the next step.

    The GNU allocator hands freed memory back to the system above twice the largest block that was ever freed
    (up to 32 MB), and page faults then take a tenth of each step. Other allocators do not care.
    """
    torch.empty(LARGEST_BLOCK, dtype=torch.uint8)  # freed at once, and never touched


def kept_bytes(problem: Problem, candidates: Candidates) -> int:
    """What autograd keeps for one restart and one local step, extrapolated from two and three examples.

    The weights are kept whatever the number of examples; what grows with it is the difference.
    """
    n = problem.num_examples
    batch = n if problem.one_gradient else min(n, problem.training.batch_size or n)
    two, three = (_measured(problem, candidates, count) for count in (2, 3))
    return two + (three - two) * max(0, batch - 2)


def _measured(problem: Problem, candidates: Candidates, count: int) -> int:
    one_step = replace(problem.training, batch_size=None, epochs=1, steps=None)
    small = replace(
        problem.with_count(count), training=one_step, exchange=replace(problem.exchange, clients=(0,))
    )
    index = torch.arange(count) % problem.num_examples
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        inputs = candidates.inputs[0, index].detach().requires_grad_()
        update = simulated_update(small, inputs, candidates.labels[0, index])
    # freed only now: an address used twice would be counted once
    del update
    return sum(sizes.values())


def total_bytes(device: torch.device) -> int | None:
    """All memory there is on the device, where the system tells."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    if device.type == "cpu" and {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= set(os.sysconf_names):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def check_memory(problem: Problem, candidates: Candidates) -> None:
    """Raise NotApplicable with the estimate where even one restart exceeds all memory of the device."""
    total = total_bytes(candidates.inputs.device)
    if total is None or problem.num_examples < SMALL_BATCH:
        return
    weights = sum(t.numel() * t.element_size() for t in problem.observed)
    # several local steps keep the weights of as many halvings, see `replay`
    needed = kept_bytes(problem, candidates) + problem.local_steps.bit_length() * weights
    if needed > total:
        raise NotApplicable(
            f"inverting {problem.num_examples} examples of this model takes about {needed / 1e9:.1f} GB, but "
            f"the device has {total / 1e9:.1f} GB: use a smaller batch or a smaller model."
        )
