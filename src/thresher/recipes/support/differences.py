"""What a recipe does differently from the paper, generated from its settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thresher.options import changes_result, describe
from thresher.training.config import TrainConfig


@dataclass(frozen=True)
class Either:
    """Several values that a paper gives for one setting."""

    values: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        return other in self.values

    def __str__(self) -> str:
        return " or ".join(map(_text, self.values))


@dataclass(frozen=True)
class Span:
    """A range of values of which a paper gives only the ends."""

    low: float
    high: float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list) and (min(other), max(other)) == (self.low, self.high)

    def __str__(self) -> str:
        return f"{_text(self.low)} to {_text(self.high)}"


@dataclass(frozen=True)
class PaperSettings:
    """What a paper published, and the settings of each preset of a recipe."""

    published: Mapping[str, Any]
    """Options of training and others by name; what the paper does not give is not in it."""
    presets: Mapping[str, Mapping[str, Any]]

    def differs(self, preset: str) -> str:
        """Return in words how a preset differs from the paper; "" if it does not."""
        return differences(self.presets.get(preset, {}), self.published)


def differences(settings: Mapping[str, Any], published: Mapping[str, Any]) -> str:
    """Return in words how `settings` differ from what a paper published.

    A setting that was published and has another value is named with both. Settings that change the
    result and were not published are listed as our choice. An option that is not set has its
    default.
    """
    if not published:
        return ""
    defaults = {info.name: info.default for info in describe(TrainConfig)}
    actual = {key: settings.get(key, defaults.get(key)) for key in published}
    changed = [
        f"{_words(key)} {_text(actual[key])} instead of {_text(value)}"
        for key, value in published.items()
        if value != actual[key]
    ]
    irrelevant = set(defaults) - changes_result(TrainConfig) | {"evaluate_every"}
    chosen = [
        f"{_words(key)} {_text(value)}"
        for key, value in settings.items()
        if key not in published and key not in irrelevant
    ]
    if chosen:
        changed.append(f"not published: {', '.join(chosen)}")
    return "; ".join(changed)


def _words(key: str) -> str:
    return key.replace("_", " ")


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " · ".join(map(_text, value))
    if value is None:
        return "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
