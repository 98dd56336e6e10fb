"""Two small networks: one bound by communication, one by computation.

Like AlexNet, `alexnet-small` has nearly all its weights in fully connected layers: 4.3 million
weights (17 MB of gradient) and few operations. Like GoogLeNet, `googlenet-small` has few weights
(0.4 million, 1.5 MB) and many operations. Both take images of at least 8×8 pixels.
"""

import torch
from torch import Tensor, nn

from thresher.models.convolution import Conv2d
from thresher.models.pooling import MaxPool2d


class AlexNetSmall(nn.Module):
    """Three convolutions, then linear layers of 1,024 × 2,048 and 2,048 × 1,024.

    There is no dropout, so that a run depends on its samples only.
    """

    def __init__(self, classes: int, channels: int = 3) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, 32, 5, stride=2, padding=2),
            nn.ReLU(inplace=True),
            MaxPool2d(3, stride=2, padding=1),
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
        # Without batch norm, keeps the variance of activations through five ReLUs.
        for module in (*self.convolutions, *self.connected):
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward_features(self, x: Tensor) -> Tensor:
        """Return features (n, 1024) of images (n, channels, height, width)."""
        return self.connected(self.convolutions(x).flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.forward_features(x))


def _unit(inputs: int, out: int, size: int) -> nn.Sequential:
    return nn.Sequential(
        Conv2d(inputs, out, size, padding=size // 2, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(inplace=True),
    )


class Inception(nn.Module):
    """Four parallel paths (1×1, 3×3, twice 3×3, pooled), concatenated to 4 · `width` channels."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.one = _unit(inputs, width, 1)
        self.three = nn.Sequential(_unit(inputs, width, 1), _unit(width, width, 3))
        self.five = nn.Sequential(
            _unit(inputs, width, 1), _unit(width, width, 3), _unit(width, width, 3)
        )
        self.pooled = nn.Sequential(MaxPool2d(3, stride=1, padding=1), _unit(inputs, width, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], 1)


class GoogLeNetSmall(nn.Module):
    """A stem, six inception modules and global average pooling."""

    def __init__(self, classes: int, channels: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _unit(channels, 32, 3),
            MaxPool2d(3, stride=2, padding=1),
            Inception(32, 24),
            Inception(96, 24),
            MaxPool2d(3, stride=2, padding=1),
            Inception(96, 32),
            Inception(128, 32),
            MaxPool2d(3, stride=2, padding=1),
            Inception(128, 48),
            Inception(192, 64),
        )
        self.head = nn.Linear(256, classes)

    def forward_features(self, x: Tensor) -> Tensor:
        """Return features (n, 256) of images (n, channels, height, width)."""
        return self.body(x).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.forward_features(x))
