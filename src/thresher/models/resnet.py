"""Residual networks: ImageNet's 18 … 152 with either stem, CIFAR's 20, 56, 110, and a tiny one.

Layers have torchvision's names (`conv1`, `layer1.0.conv1`, …, `fc`), so that its weights load.
He et al. 2015, https://arxiv.org/abs/1512.03385; as in torchvision, the stride of a bottleneck is
in its 3×3 convolution.
"""

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from thresher.models.batch_norm import normalise
from thresher.models.convolution import Conv2d
from thresher.models.pooling import MaxPool2d


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
        x = normalise(self.bn1, self.conv1(x), relu=self.relu)
        return normalise(self.bn2, self.conv2(x), shortcut, self.relu)


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
        x = normalise(self.bn1, self.conv1(x), relu=self.relu)
        x = normalise(self.bn2, self.conv2(x), relu=self.relu)
        return normalise(self.bn3, self.conv3(x), shortcut, self.relu)


class Projection(nn.Sequential):
    """Shortcut by a 1×1 convolution and its batch norm (option B)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        super().__init__(convolution, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return normalise(self[1], self[0](x))


class Subsample(nn.Module):
    """Shortcut without parameters (option A): every `stride`-th pixel, new channels zero."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.extra = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, :: self.stride, :: self.stride]
        return nn.functional.pad(x, (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2))


class ResNet(nn.Module):
    """A residual network of `depths` blocks and `widths` channels per stage.

    Stems: "imagenet" (7×7 with stride 2, then max-pool) or "cifar" (3×3, no max-pool). Shortcuts:
    "projection" (1×1 convolution, option B) or "subsample" (no parameters, option A, as in the
    paper's CIFAR networks).
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
            self.conv1 = Conv2d(channels, self.inputs, 7, 2, padding=3, bias=False)
            self.maxpool: nn.Module = MaxPool2d(3, 2, padding=1)
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
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @property
    def head(self) -> nn.Linear:
        """The layer that maps features to logits."""
        return self.fc

    def forward_features(self, x: Tensor) -> Tensor:
        """Return features (n, feature_dim) of images (n, channels, height, width)."""
        x = self.maxpool(normalise(self.bn1, self.conv1(x), relu=self.relu))
        for number in range(1, self.stages + 1):
            x = self.get_submodule(f"layer{number}")(x)
        return x.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, classes)."""
        return self.fc(self.forward_features(x))

    def _stage(
        self, block: type[BasicBlock] | type[Bottleneck], depth: int, width: int, stride: int
    ) -> nn.Sequential:
        outputs = width * block.expansion
        downsample: nn.Module | None = None
        if stride != 1 or self.inputs != outputs:
            if self.projection:
                downsample = Projection(self.inputs, outputs, stride)
            else:
                downsample = Subsample(self.inputs, outputs, stride)
        blocks = [block(self.inputs, width, stride, downsample)]
        blocks += [block(outputs, width) for _ in range(depth - 1)]
        self.inputs = outputs
        return nn.Sequential(*blocks)


def _cifar(blocks: int) -> partial[ResNet]:
    """Return a network of 6 · blocks + 2 layers in three stages."""
    widths = (16, 32, 64)
    return partial(ResNet, BasicBlock, (blocks,) * 3, widths, stem="cifar", shortcut="subsample")


# Each is called with (classes, channels=3) and initialised from torch's global generator.
_WIDTHS = (64, 128, 256, 512)
resnet18 = partial(ResNet, BasicBlock, (2, 2, 2, 2), _WIDTHS)
resnet34 = partial(ResNet, BasicBlock, (3, 4, 6, 3), _WIDTHS)
resnet50 = partial(ResNet, Bottleneck, (3, 4, 6, 3), _WIDTHS)
resnet101 = partial(ResNet, Bottleneck, (3, 4, 23, 3), _WIDTHS)
resnet152 = partial(ResNet, Bottleneck, (3, 8, 36, 3), _WIDTHS)
resnet18_cifar = partial(resnet18, stem="cifar")
resnet34_cifar = partial(resnet34, stem="cifar")
resnet50_cifar = partial(resnet50, stem="cifar")
resnet101_cifar = partial(resnet101, stem="cifar")
resnet152_cifar = partial(resnet152, stem="cifar")
tiny = _cifar(1)
resnet20 = _cifar(3)
resnet56 = _cifar(9)
resnet110 = _cifar(18)
