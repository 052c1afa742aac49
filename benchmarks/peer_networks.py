"""Run under the peer's own python: its inverting gradients on networks of `inversion_networks`.

    PEER_PYTHON peer_networks.py PEER_FOLDER

Every line of the standard input asks for one search, in JSON: the setting's name, the model's seed, the
search's seed, images (an .npz with inputs in model units and labels), out, steps, and options of its attack.
What it returned goes to `out`, and a line answers with its CPU seconds: in all, and of each step, between two
calls of torch.optim.Adam, by which the peer moves its candidate. Its `reconstruct` is called as the script
beside it, run_breaching.py, calls it.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from typing import Any

import numpy
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from inversion_networks import SETTINGS, step_times


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    import_module("tvshim")  # must precede the peer
    breaching = import_module("breaching")
    torch.set_num_threads(1)
    answers, sys.stdout = sys.stdout, sys.stderr  # the peer prints
    for line in sys.stdin:
        print(json.dumps(search(breaching, **json.loads(line))), file=answers, flush=True)


def search(
    breaching: Any,
    *,
    name: str,
    model_seed: int,
    seed: int,
    images: str,
    out: str,
    steps: int,
    options: list[str],
) -> dict[str, Any]:
    users = import_module("breaching.cases.users")
    container = import_module("breaching.cases.models.model_preparation").VisionContainer
    setting, stored = SETTINGS[name], numpy.load(images, allow_pickle=False)
    inputs, labels = torch.from_numpy(stored["inputs"]), torch.from_numpy(stored["labels"])

    class Loader:
        name = "pictures"
        dataset = property(lambda self: self)

        def __iter__(self):  # type: ignore[no-untyped-def]
            yield {"inputs": inputs.clone(), "labels": labels.clone()}

        def __len__(self) -> int:
            return 1

    setup = {"device": torch.device("cpu"), "dtype": torch.float}
    case = [
        "data=CIFAR10", "server=honest-but-curious", "server.pretrained=False",
        f"user={'local_updates' if setting.local_steps else 'local_gradient'}",
        f"user.num_data_points={len(inputs)}", "user.provide_labels=True",
    ]  # fmt: skip
    if setting.local_steps:
        each = len(inputs) // setting.local_steps
        case += [
            f"user.num_local_updates={setting.local_steps}",
            f"user.num_data_per_local_update_step={each}",
        ]
        case += ["user.local_learning_rate=0.01"]
    config = breaching.get_case_config("1_single_image_small", overrides=case)
    model, loss = container(setting.model(model_seed)), torch.nn.CrossEntropyLoss()
    server = breaching.cases.construct_server(model, loss, config, setup)
    model = server.vet_model(model)
    user = (users.UserMultiStep if setting.local_steps else users.UserSingleStep)(
        model, loss, Loader(), setup, 0, config.user
    )
    chosen = [*options, f"optim.max_iterations={steps}", f"optim.callback={steps}"]
    attack = breaching.get_attack_config("invertinggradients", overrides=chosen)
    torch.manual_seed(seed)
    attacker = breaching.attacks.prepare_attack(model, loss, attack, setup)
    with sdpa_kernel(SDPBackend.MATH), step_times() as times:
        shared, payloads, _ = server.run_protocol(user)
        times.clear()
        start = time.process_time()
        found, _ = attacker.reconstruct(payloads, shared, server.secrets)
        seconds = time.process_time() - start
    numpy.savez(out, found=found["data"].detach().numpy())
    return {"seconds": seconds, "times": times}


if __name__ == "__main__":
    main()
