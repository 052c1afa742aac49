"""The network of Flower's PyTorch quickstart (6 and 16 filters), on digits that come with scikit-learn."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

EXAMPLES = 8


class Net(nn.Module):
    """6 and 16 filters and three dense layers, as in the quickstart, for 8x8 pixels in place of 32x32."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3, padding=1)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 3, padding=1)
        self.fc1 = nn.Linear(16 * 2 * 2, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.flatten(1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


def load_data(client: int, examples: int = EXAMPLES) -> tuple[torch.Tensor, torch.Tensor]:
    """The images and labels that one client holds. An audit is given this function as the truth."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    mine = order[client * examples : (client + 1) * examples]
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    return images[mine], torch.tensor(digits.target)[mine]


def train(
    net: nn.Module, data: tuple[torch.Tensor, torch.Tensor], *, epochs: int, lr: float, batch: int
) -> float:
    """Plain SGD through the client's examples; returns the mean loss."""
    images, labels = data
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    net.train()
    losses = []
    for _ in range(epochs):
        for part in torch.arange(len(labels)).split(batch):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images[part]), labels[part])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def test(net: nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> tuple[float, float]:
    """Loss and accuracy."""
    images, labels = data
    net.eval()
    logits = net(images)
    return float(F.cross_entropy(logits, labels)), float((logits.argmax(1) == labels).float().mean())
