"""Where newcomers begin: the demonstration (`seepage audit` without a file) and the files `init` writes."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from seepage.core.errors import SpecError
from seepage.core.registry import unknown
from seepage.examples import EXAMPLES

DEMO: dict[str, Any] = {
    "title": "Demonstration: face patches on a small network",
    "model": {"name": "mlp", "hidden": [1000, 100]},
    "data": "faces",
    "attacks": "auto",
    "budget": 40,
    "threat": "honest_but_curious",
    "seeds": [0, 1, 2],
    "protocol": {"batch_size": 20},
}

TEMPLATE = """\
# seepage audit: what does this deployment give away?  Run: seepage audit {name}
title   = "My deployment"
model   = "my_package.models:build"      # or a name, or {{name="...", weights="w.safetensors"}}
data    = "my_package.data:load"         # (x, y); or {{name="t.csv", label="y"}}, an .npz, "./pics", a name
attacks = "auto"                         # all that fit, in 3 minutes (budget = "10m"); or names: seepage list
threat  = "honest_but_curious"           # or {{base="malicious_server", grant=["labels"]}}
seeds   = [0, 1, 2]                      # one batch each: intervals need several
fail_on = {{exact = 0.05}}                 # exit code 1 if 5 % of the examples come out exactly

[protocol]
batch_size = 32                          # examples a client uses in a round
clients    = 1                           # clients in a round
aggregation = "per_client"               # or mean, secure_sum, median
algorithm  = "fedsgd"                    # or fedavg, with local_batch_size, local_epochs, local_steps
lr         = 0.1                         # also momentum, weight_decay, batch_norm, partition
"""

STUDY_TEMPLATE = """\
# seepage tradeoff: what does each defense stop, and what does it cost?  Run: seepage tradeoff {name}
title   = "My deployment"
model   = "my_package.models:build"      # or a name: "mlp", "fcnn", "convnet"; seepage list shows all
data    = "my_package.data:load"         # returns (x, y); or an .npz, a .csv, a folder of images, a name
threat  = "malicious_server"             # it may also send crafted weights; or "honest_but_curious"
seeds   = [0, 1, 2]                      # one batch and one training each: the +- of the table
attacks = "auto"                         # all that fit, in half of the budget; or names: seepage list
budget  = "30m"                          # after it no cell is begun any more; the same command goes on
adaptive = true                          # run each attack also by a server that knows the defense
delta   = 1e-5                           # for the epsilon of the points with differential privacy

# A list as a setting makes one point of each value. "none" is always there, for comparison.
defenses = [
  {{name = "clipping", norm = [1.0, 0.1]}},          # the update's length
  {{name = "gaussian_noise", sigma = [0.001, 0.01]}},  # on every entry, without a guarantee
  {{name = "pruning", share = [0.9, 0.99]}},         # share of the entries that is not sent
  {{name = "quantisation", bits = 8}},               # also "sign", "soteria", "oasis", "share_layers",
  "hide_bias",                                     # "central_dp", "refuse_traps": see docs/defenses.md
  {{name = "secure_sum", clients = 4}},              # the protocol: also "larger_batches", "median",
  {{name = "local_averaging", batches = 4}},         # see docs/defenses.md
  {{name = "dp_sgd", clip = 1.0, epsilon = [1.0, 3.0, 8.0]}},  # the one with a proof: a curve
]

[protocol]
batch_size = 16                          # examples a client uses in a round
lr         = 0.1                         # also algorithm = "fedavg", local_epochs, aggregation, ...

[training]                               # shows the price in accuracy, each defense at its own rate
rounds     = 300                         # at most: it ends where the accuracy no longer rises
clients    = 4                           # examples = 512 for each of them; by default up to 1,024
test_examples = 256                      # held out: no client has them; half as many more choose the rate
canaries   = 500                         # an empirical epsilon beside the accountant's; 0: none
"""


def starting_files(name: str, study: bool = False, example: str | None = None) -> dict[str, str]:
    """What `seepage init` writes, by file name.

    >>> list(starting_files("mine.toml")), list(starting_files("mine.toml", example="table"))
    (['mine.toml'], ['mine.toml', 'mine_patients.csv'])
    """
    if example is None:
        return {name: (STUDY_TEMPLATE if study else TEMPLATE).format(name=name)}
    if study:
        raise SpecError("--example writes an audit: leave out --study, or fill in a study's file by hand.")
    if example not in EXAMPLES:
        raise SpecError(unknown("example", example, EXAMPLES))
    stem = PurePath(name).stem
    if example == "text" and not stem.isidentifier():
        raise SpecError(f"'{name}' names a Python file as well: use letters, digits and _ only.")
    return EXAMPLES[example](name, stem)
