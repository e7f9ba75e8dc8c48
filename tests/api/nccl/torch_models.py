# A small network and its training steps, for tests that compare process groups. Used here and in ../torch.
import torch

STEPS = 4


def network():
    torch.manual_seed(1)
    layers = [torch.nn.Linear(20, 33), torch.nn.Tanh(), torch.nn.LayerNorm(33), torch.nn.Linear(33, 17), torch.nn.ReLU(), torch.nn.Linear(17, 5)]
    return torch.nn.Sequential(*layers)


def train(model, optimizer, where, rank):
    """The losses of this rank."""
    losses = []
    for step in range(STEPS):
        g = torch.Generator().manual_seed(100 * step + rank)
        x, y = torch.randn(12, 20, generator=g).to(where), torch.randint(0, 5, (12,), generator=g).to(where)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x).float(), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
