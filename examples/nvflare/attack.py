"""What the recorded updates give away: as the server sees them, behind the filter. Says how many came out.

python attack.py recorded/
"""

import sys

import torch
from client import EXAMPLES
from network import Network
from sklearn.datasets import load_digits

from seepage.attacks import ATTACKS
from seepage.core.types import InputSpec, Knowledge, LocalTraining, Modality
from seepage.record.exchanges import RecordedFolder


def main(folder: str) -> None:
    digits = InputSpec(modality=Modality.IMAGE, shape=(1, 8, 8), num_classes=10)
    known = Knowledge(input=digits, local=LocalTraining(algorithm="fedavg", lr=0.1, steps=1))
    for recorded in RecordedFolder.open(folder):
        found = ATTACKS["exact_extraction"]().run([recorded.exchange(Network())], known)
        # The truth, for counting alone: the attack has not seen it.
        first = recorded.info.client * EXAMPLES
        truth = torch.tensor(load_digits().data[first : first + EXAMPLES] / 16.0, dtype=torch.float32)
        off = (truth[:, None] - found.values.flatten(1)[None].float()).abs().amax(dim=2)
        exact = int((off.amin(dim=1) < 1e-3).sum())
        passed = " and ".join(recorded.info.filters) or "no filter"
        print(f"site-{recorded.info.client}, behind {passed}: {exact} of {EXAMPLES} digits exactly")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "recorded")
