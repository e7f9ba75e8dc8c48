"""Handwritten digits, and two small networks for them: the data and models of the examples."""
import pathlib

import torch

TRAINING = 1437  # rows; the other 360 are for tests
HERE = pathlib.Path(__file__).resolve().parent
FILE = "tests/golden/data/digits.csv"  # of ouro's source tree


def load(dtype=None):
    """(pixels (1797, 1, 8, 8) from 0 to 1, labels (1797)), in the same shuffled order everywhere."""
    file = next((f for f in (HERE / "digits.csv", *(p / FILE for p in HERE.parents)) if f.exists()), None)
    if file is None:
        raise SystemExit(f"the digits are neither in {HERE} nor in a source tree around it: copy {FILE} there")
    rows = torch.tensor([[int(n) for n in line.split(",")] for line in file.read_text().split()])
    order, s = list(range(len(rows))), 12345
    for i in range(len(rows) - 1, 0, -1):
        s = (1103515245 * s + 12345) % 2**31
        j = s % (i + 1)
        order[i], order[j] = order[j], order[i]
    rows = rows[order]
    return (rows[:, :64] / 16).reshape(-1, 1, 8, 8).to(dtype or torch.get_default_dtype()), rows[:, 64]


class Convolutional(torch.nn.Module):
    def __init__(self, channels=8, more=16):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, channels, 3, padding=1)
        self.bn1 = torch.nn.BatchNorm2d(channels)
        self.conv2 = torch.nn.Conv2d(channels, more, 3, stride=2, padding=1)
        self.fc = torch.nn.Linear(16 * more, 10)

    def forward(self, x):
        return self.fc(torch.relu(self.conv2(torch.relu(self.bn1(self.conv1(x))))).flatten(1))


class Perceptron(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = torch.nn.Linear(64, 32), torch.nn.Linear(32, 10)

    def forward(self, x):
        return self.fc2(torch.tanh(self.fc1(x.flatten(1))))


def batches(x, y, part, parts, size, steps):
    """Yields `steps` batches of `size` rows from every parts-th training row, starting at `part`."""
    rows = torch.arange(part, TRAINING, parts)
    for t in range(steps):
        at = rows[torch.arange(size * t, size * (t + 1)) % len(rows)]
        yield x[at], y[at]


@torch.no_grad()
def accuracy(model, x, y):
    """The share of test rows whose digit is recognised."""
    model.eval()
    right = (model(x[TRAINING:]).argmax(1) == y[TRAINING:]).double().mean().item()
    model.train()
    return right
