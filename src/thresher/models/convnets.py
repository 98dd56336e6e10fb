"""Two small networks at the ends of claim K1: one bound by communication, one by computation.

Like AlexNet, `alexnet-small` holds nearly all its weights in fully connected layers: 4.3 million
weights (17 MB of gradient) against few operations. Like GoogLeNet, `googlenet-small` holds few
weights (0.4 million, 1.5 MB) and computes much with them. Both take images of any size from 8×8.
"""

import torch
from torch import Tensor, nn

from thresher.models.convolution import Conv2d

NAMES = ("alexnet-small", "googlenet-small")


def convnet(name: str, classes: int, channels: int) -> nn.Module:
    return (
        AlexNetSmall(classes, channels) if name == NAMES[0] else GoogLeNetSmall(classes, channels)
    )


class AlexNetSmall(nn.Module):
    """Three convolutions, then layers of 1,024 × 2,048 and 2,048 × 1,024; no dropout, so that a
    run is a function of its samples alone."""

    def __init__(self, classes: int, channels: int = 3) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, 32, 5, stride=2, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
            Conv2d(32, 64, 3, padding=1),
            nn.ReLU(inplace=True),
            Conv2d(64, 64, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(4),
        )
        self.connected = nn.Sequential(
            nn.Linear(64 * 16, 2048),
            nn.ReLU(inplace=True),
            nn.Linear(2048, 1024),
            nn.ReLU(inplace=True),
        )
        self.head = nn.Linear(1024, classes)
        # Without batch norm the signal must neither die nor grow on its way through five ReLUs.
        for module in (*self.convolutions, *self.connected):
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward_features(self, x: Tensor) -> Tensor:
        """(n, channels, h, w) → (n, 1024)."""
        return self.connected(self.convolutions(x).flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.forward_features(x))


def _unit(inside: int, out: int, size: int) -> nn.Sequential:
    return nn.Sequential(
        Conv2d(inside, out, size, padding=size // 2, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(inplace=True),
    )


class Inception(nn.Module):
    """Four paths side by side (1×1, 3×3, twice 3×3, pooled), joined: 4·`width` channels."""

    def __init__(self, inside: int, width: int) -> None:
        super().__init__()
        self.one = _unit(inside, width, 1)
        self.three = nn.Sequential(_unit(inside, width, 1), _unit(width, width, 3))
        self.five = nn.Sequential(
            _unit(inside, width, 1), _unit(width, width, 3), _unit(width, width, 3)
        )
        self.pooled = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), _unit(inside, width, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], 1)


class GoogLeNetSmall(nn.Module):
    """A stem, six inception modules at two sizes, the mean over places: 256 features."""

    def __init__(self, classes: int, channels: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _unit(channels, 32, 3),
            nn.MaxPool2d(3, stride=2, padding=1),
            Inception(32, 24),
            Inception(96, 24),
            nn.MaxPool2d(3, stride=2, padding=1),
            Inception(96, 32),
            Inception(128, 32),
            nn.MaxPool2d(3, stride=2, padding=1),
            Inception(128, 48),
            Inception(192, 64),
        )
        self.head = nn.Linear(256, classes)

    def forward_features(self, x: Tensor) -> Tensor:
        """(n, channels, h, w) → (n, 256)."""
        return self.body(x).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.forward_features(x))
