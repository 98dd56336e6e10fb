"""Networks of the papers at full size, on torch's meta device: for counting operations only."""

from typing import Any

import torch
from torch import Tensor, nn

from thresher.models.registry import build
from thresher.scaling.profile import Profile
from thresher.scaling.skeleton import skeleton


def alexnet() -> nn.Module:
    """Build AlexNet: five convolutions and three fully connected layers."""
    with torch.device("meta"):
        return nn.Sequential(
            _convolution(3, 96, 11, stride=4, padding=2),
            _halved(),
            _convolution(96, 256, 5, groups=2),
            _halved(),
            _convolution(256, 384, 3),
            _convolution(384, 384, 3, groups=2),
            _convolution(384, 256, 3, groups=2),
            _halved(),
            nn.Flatten(),
            nn.Sequential(nn.Linear(9216, 4096), nn.ReLU()),
            nn.Sequential(nn.Linear(4096, 4096), nn.ReLU()),
            nn.Linear(4096, 1000),
        )


def googlenet() -> nn.Module:
    """Build GoogLeNet with the two auxiliary classifiers used in training."""
    with torch.device("meta"):
        return _GoogLeNet()


def resnet50_profile(batch: int) -> Profile:
    """Return the profile of ResNet-50 on ImageNet, without times."""
    with torch.device("meta"):
        return skeleton(build("resnet50", 1000), "resnet50", (3, 224, 224), 1000, batch)


def _convolution(channels: int, out: int, size: int, **options: Any) -> nn.Sequential:
    options = {"padding": size // 2, **options}
    return nn.Sequential(nn.Conv2d(channels, out, size, **options), nn.ReLU())


def _halved() -> nn.Module:
    return nn.MaxPool2d(3, stride=2, ceil_mode=True)


class _Inception(nn.Module):
    """Branches of 1×1, 3×3, 5×5 and pooling; `three` and `five` give reduction and output."""

    def __init__(
        self, channels: int, one: int, three: tuple[int, int], five: tuple[int, int], pooled: int
    ) -> None:
        super().__init__()
        self.paths = nn.ModuleList([_convolution(channels, one, 1)])
        for (reduced, out), size in ((three, 3), (five, 5)):
            parts = _convolution(channels, reduced, 1), _convolution(reduced, out, size)
            self.paths.append(nn.Sequential(*parts))
        pool = nn.MaxPool2d(3, stride=1, padding=1)
        self.paths.append(nn.Sequential(pool, _convolution(channels, pooled, 1)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([path(x) for path in self.paths], 1)


class _GoogLeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.begin = nn.Sequential(
            _convolution(3, 64, 7, stride=2),
            _halved(),
            _convolution(64, 64, 1),
            _convolution(64, 192, 3),
            _halved(),
            _Inception(192, 64, (96, 128), (16, 32), 32),
            _Inception(256, 128, (128, 192), (32, 96), 64),
            _halved(),
            _Inception(480, 192, (96, 208), (16, 48), 64),
        )
        self.middle = nn.Sequential(
            _Inception(512, 160, (112, 224), (24, 64), 64),
            _Inception(512, 128, (128, 256), (24, 64), 64),
            _Inception(512, 112, (144, 288), (32, 64), 64),
        )
        self.end = nn.Sequential(
            _Inception(528, 256, (160, 320), (32, 128), 128),
            _halved(),
            _Inception(832, 256, (160, 320), (32, 128), 128),
            _Inception(832, 384, (192, 384), (48, 128), 128),
            nn.AvgPool2d(7),
            nn.Flatten(),
            nn.Linear(1024, 1000),
        )
        self.first_side, self.second_side = _side(512), _side(528)

    def forward(self, x: Tensor) -> Tensor:
        x = self.begin(x)
        first = self.first_side(x)
        x = self.middle(x)
        sides = first + self.second_side(x)
        return self.end(x) + 0.3 * sides


def _side(channels: int) -> nn.Sequential:
    """Build an auxiliary classifier for a 14×14 feature map."""
    parts = (nn.AvgPool2d(5, stride=3), _convolution(channels, 128, 1), nn.Flatten())
    return nn.Sequential(*parts, nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 1000))
