"""Residual networks: ImageNet's 18 … 152 with either stem, CIFAR's 20/56/110, and a tiny one.

Layers carry torchvision's names (`conv1`, `layer1.0.conv1`, …, `fc`), so that its weights load.
He et al. 2015, https://arxiv.org/abs/1512.03385; strides sit in the 3×3 convolution of a
bottleneck, as in torchvision.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from thresher.models.convolution import Conv2d


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> Conv2d:
    return Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions; (n, inputs, h, w) → (n, width, h/stride, w/stride)."""

    expansion = 1

    def __init__(
        self, inputs: int, width: int, stride: int = 1, downsample: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, width, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _conv3x3(width, width)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(x)) + shortcut)


class Bottleneck(nn.Module):
    """1×1, 3×3, 1×1 convolutions; (n, inputs, h, w) → (n, 4·width, h/stride, w/stride)."""

    expansion = 4

    def __init__(
        self, inputs: int, width: int, stride: int = 1, downsample: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.conv1 = Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv3x3(width, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = Conv2d(width, width * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        return self.relu(self.bn3(self.conv3(x)) + shortcut)


class Subsample(nn.Module):
    """The shortcut without parameters (option A): every `stride`-th pixel, new channels zero."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.extra = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, :: self.stride, :: self.stride]
        return nn.functional.pad(x, (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2))


class ResNet(nn.Module):
    """A residual network with one stage per entry of `depths`, each of `widths` channels.

    stem: "imagenet" (7×7 stride 2, then max-pool: an image shrinks to a quarter) or "cifar"
    (3×3, no max-pool). shortcut: "projection" (1×1 convolution, option B) or "subsample"
    (no parameters, option A, as the CIFAR networks of the paper have it).
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        widths: Sequence[int],
        classes: int,
        channels: int = 3,
        stem: str = "imagenet",
        shortcut: str = "projection",
    ) -> None:
        super().__init__()
        self.projection = shortcut == "projection"
        self.inputs = widths[0]
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(channels, self.inputs, 7, 2, padding=3, bias=False)
            self.maxpool: nn.Module = nn.MaxPool2d(3, 2, padding=1)
        else:
            self.conv1 = _conv3x3(channels, self.inputs)
            self.maxpool = nn.Identity()
        self.bn1 = nn.BatchNorm2d(self.inputs)
        self.relu = nn.ReLU(inplace=True)
        self.stages = len(depths)
        for number, (depth, width) in enumerate(zip(depths, widths, strict=True), start=1):
            stage = self._stage(block, depth, width, stride=1 if number == 1 else 2)
            self.add_module(f"layer{number}", stage)
        self.feature_dim = self.inputs
        self.fc = nn.Linear(self.feature_dim, classes)
        self._initialise()

    @property
    def head(self) -> nn.Linear:
        return self.fc

    def forward_features(self, x: Tensor) -> Tensor:
        """Penultimate features, (n, feature_dim), of images (n, channels, height, width)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for number in range(1, self.stages + 1):
            x = self.get_submodule(f"layer{number}")(x)
        return x.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (n, classes)."""
        return self.fc(self.forward_features(x))

    def _stage(
        self, block: type[BasicBlock] | type[Bottleneck], depth: int, width: int, stride: int
    ) -> nn.Sequential:
        outputs = width * block.expansion
        downsample: nn.Module | None = None
        if stride != 1 or self.inputs != outputs:
            if self.projection:
                conv = nn.Conv2d(self.inputs, outputs, 1, stride, bias=False)
                downsample = nn.Sequential(conv, nn.BatchNorm2d(outputs))
            else:
                downsample = Subsample(self.inputs, outputs, stride)
        blocks = [block(self.inputs, width, stride, downsample)]
        blocks += [block(outputs, width) for _ in range(depth - 1)]
        self.inputs = outputs
        return nn.Sequential(*blocks)

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


_IMAGENET: dict[str, tuple[type[BasicBlock] | type[Bottleneck], tuple[int, ...]]] = {
    "resnet18": (BasicBlock, (2, 2, 2, 2)),
    "resnet34": (BasicBlock, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
    "resnet101": (Bottleneck, (3, 4, 23, 3)),
    "resnet152": (Bottleneck, (3, 8, 36, 3)),
}
# 6n + 2 layers in three stages of n blocks; `tiny` is n = 1, for small images on a laptop.
_CIFAR = {"tiny": 1, "resnet20": 3, "resnet56": 9, "resnet110": 18}

NAMES = (*_CIFAR, *_IMAGENET, *(f"{name}-cifar" for name in _IMAGENET))


def resnet(name: str, classes: int, channels: int = 3) -> ResNet:
    """One of `NAMES`, freshly initialised from torch's global generator."""
    if name in _CIFAR:
        each = (_CIFAR[name],) * 3
        return ResNet(BasicBlock, each, (16, 32, 64), classes, channels, "cifar", "subsample")
    base, _, suffix = name.partition("-")
    block, depths = _IMAGENET[base]
    return ResNet(block, depths, (64, 128, 256, 512), classes, channels, suffix or "imagenet")


def parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def trainable_bytes(model: nn.Module) -> int:
    """Bytes of gradient that one step sends: what `scaling` counts."""
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
