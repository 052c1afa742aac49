"""What equal CPU time brings: inverting_gradients as it comes, beside breaching at its default and tuned.

    SEEPAGE_DATA=... python benchmarks/inversion_vs_peer.py [--peer-python PATH --peer-folder PATH]
        [--networks NAME ...] [--images 4] [--seeds 2] [--steps 400] [--first-seed 90000]

Five networks of `inversion_networks` by default, in torch's own initialisation. A picture's seed draws it
from CIFAR-10's test set, and the weights; a search's seed draws its start. Ours takes `--steps` steps;
the peer gets as many steps as fit into the CPU time that ours took, once as it comes and
once tuned (step .3, cosine decay, tv .01: options that a user finds by trying). Labels are known. Without the
peer our side runs alone. One thread. The truth serves to measure only.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

import torch

from inversion_cost import middle
from inversion_networks import SETTINGS
from inversion_sides import TUNED, Peer, Side, cifar, psnr

NETWORKS = ("ResNet-20", "CNN, max-pools", "ViT", "GroupNorm", "GELU")


def spread(values: Sequence[float]) -> str:
    """Mean, least, quartiles and most."""
    if len(values) < 2:
        return f"{values[0]:.1f}"
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (
        f"{statistics.fmean(values):.1f} on average (least {min(values):.1f}, quartiles {low:.1f}, "
        f"{middle:.1f}, {high:.1f}, most {max(values):.1f})"
    )


def compare(
    side: Side, peer: Peer | None, *, seed: int, steps: int, step_ms: float
) -> tuple[dict[str, float], str]:
    """dB of each side, and a line about them."""
    ours, seconds, notes = side.ours(seed=seed, steps=steps)
    found = {"ours": ours, "flat": side.flat}
    took = [seconds]
    if peer:
        count = max(10, int(1000 * seconds / step_ms))
        for title, options in (("peer", ()), ("tuned", TUNED)):
            answer = peer.search(side, seed=seed, steps=count, options=options)
            found[title] = psnr(side.spec.to_raw(answer.found), side.truth)
            took.append(answer.seconds)
    figures = ", ".join(f"{title} {value:5.1f}" for title, value in found.items())
    chosen = next((note.split(" was ")[0] for note in notes if note.startswith("tv = ")), "")
    return found, f"{figures}; CPU s {' '.join(f'{t:.1f}' for t in took)}; {chosen}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python")
    parser.add_argument("--peer-folder")
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=list(SETTINGS))
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--first-seed", type=int, default=90000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    data, found = cifar(), list[dict[str, float]]()
    peer = Peer(given.peer_python, given.peer_folder) if given.peer_python else None
    for name in given.networks:
        here: list[dict[str, float]] = []
        for image in range(given.first_seed, given.first_seed + given.images):
            side = Side(name, data, model_seed=image, image_seed=image)
            step_ms = middle(peer.search(side, seed=0, steps=12).times) if peer else 0.0
            for seed in range(given.seeds):
                one, line = compare(side, peer, seed=image + seed, steps=given.steps, step_ms=step_ms)
                here.append(one)
                print(f"{name:20} {image} {seed}: {line}", flush=True)
        found += here
        summary(name, here)
    summary("all", found)


def summary(name: str, found: Sequence[dict[str, float]]) -> None:
    for other in ("flat", "peer", "tuned"):
        if other in found[0]:
            print(f"{name:20} above {other:5}: {spread([one['ours'] - one[other] for one in found])} dB")


if __name__ == "__main__":
    main()
