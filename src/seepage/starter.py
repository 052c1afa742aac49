"""Where newcomers begin: the demonstration (`seepage audit` without a file) and the file `init` writes."""

from __future__ import annotations

from typing import Any

DEMO: dict[str, Any] = {
    "title": "Demonstration: face patches on a small network",
    "model": {"name": "mlp", "hidden": [1000, 100]},
    "data": "faces",
    "attacks": ["analytic_extraction", "exact_extraction"],
    "threat": "honest_but_curious",
    "seeds": [0, 1, 2],
    "protocol": {"batch_size": 20},
}

TEMPLATE = """\
# seepage audit: what does this deployment give away?  Run: seepage audit {name}
title   = "My deployment"
model   = "my_package.models:build"      # or a name, or {{name="...", weights="w.safetensors"}}
data    = "my_package.data:load"         # returns (x, y); or an .npz, a .csv, a folder of images, a name
attacks = ["analytic_extraction", "exact_extraction"]   # seepage list shows all
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
