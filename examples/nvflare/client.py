"""A FLARE client as they are: it receives a model, trains on its own digits, and sends the weights."""

import nvflare.client as flare
import torch
from network import Network
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

EXAMPLES = 8


def main() -> None:
    flare.init()
    number = int(flare.get_site_name().rpartition("-")[2])
    pictures, labels = load_digits(return_X_y=True)
    mine = slice(number * EXAMPLES, (number + 1) * EXAMPLES)
    inputs = torch.tensor(pictures[mine] / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8)
    targets = torch.tensor(labels[mine])
    model = Network()
    while flare.is_running():
        received = flare.receive()
        model.load_state_dict(received.params)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        cross_entropy(model(inputs), targets).backward()
        optimiser.step()
        flare.send(flare.FLModel(params=model.state_dict(), meta={"NUM_STEPS_CURRENT_ROUND": 1}))


if __name__ == "__main__":
    main()
