"""Comparisons named in a study file: `primary`, and the effects that `claimed` gives for them.

A name is `ARM - BASELINE` for the comparison over all cells, or `ARM - BASELINE @ AXIS=VALUE, …`
with a value of every other axis: `network - full @ batch_size=6272`.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from thresher.errors import InvalidValueError, nearest
from thresher.study.definition import ComparisonConfig
from thresher.study.tasks import Values

Key = tuple[Any, Any, frozenset[tuple[str, Any]]]
"""Arm, baseline and the values of the other axes; no values for the comparison over all cells."""


@dataclass(frozen=True)
class NamedComparisons:
    """The primary comparisons of a study and the claimed effects."""

    primary: tuple[Key, ...] = ()
    claimed: Mapping[Key, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Compared:
    """What a study compares: its axes with their values, the compared axis, and the pairs."""

    axes: Mapping[str, Sequence[Any]]
    axis: str | None
    pairs: Sequence[tuple[Any, Any]]
    cells: Sequence[Values]
    """Combinations of values of the axes that were run, or will be."""


def named_comparisons(config: ComparisonConfig, compared: Compared) -> NamedComparisons:
    """Find the comparisons that `primary` and `claimed` name.

    Raises:
        InvalidValueError: A name is wrong, or the study does not make that comparison.
    """
    primary = [_find("primary", name, compared) for name in config.primary]
    for name, key in zip(config.primary, primary, strict=True):
        if primary.count(key) > 1:
            raise InvalidValueError(f'primary names "{name}" twice')
    claimed = config.claimed
    if claimed is None:
        return NamedComparisons(tuple(primary))
    if isinstance(claimed, Mapping):
        effects = {_find("claimed", name, compared): _effect(e) for name, e in claimed.items()}
        return NamedComparisons(tuple(primary), effects)
    effect = _effect(claimed)
    if not primary:
        raise InvalidValueError(
            "claimed needs primary comparisons", 'add primary = ["ARM - BASELINE"]', "claimed"
        )
    return NamedComparisons(tuple(primary), dict.fromkeys(primary, effect))


def _effect(value: float) -> float:
    if value == 0:
        raise InvalidValueError(f"claimed must be an effect other than 0, got {value}")
    return float(value)


def _find(option: str, name: str, compared: Compared) -> Key:
    """Return the comparison that `name` means."""
    if compared.axis is None:
        raise InvalidValueError(f'{option} names "{name}", but the study compares nothing')
    pair, _, place = (part.strip() for part in name.partition(" @ "))
    arm, baseline = _pair(option, name, pair, compared)
    if (arm, baseline) not in compared.pairs:
        reversed_pair = f"{baseline} - {arm}"
        fix = f'add ["{arm}", "{baseline}"] to pairs'
        if (baseline, arm) in compared.pairs:
            fix = f'write "{name.replace(pair, reversed_pair)}"'
        raise InvalidValueError(f'{option} names "{name}", which the study does not compare', fix)
    cell = _cell(option, name, place, compared)
    for value in (arm, baseline):
        wanted = {**dict(cell), compared.axis: value}
        if not any(wanted.items() <= known.items() for known in compared.cells):
            raise InvalidValueError(
                f'{option} names "{name}", but there are no runs of {value} there',
                "change `exclude`, or remove the name",
            )
    return arm, baseline, cell


def _pair(option: str, name: str, pair: str, compared: Compared) -> tuple[Any, Any]:
    values = compared.axes[compared.axis or ""]
    for arm, baseline in itertools.product(values, repeat=2):
        if " ".join(pair.split()) == f"{arm} - {baseline}":
            return arm, baseline
    known = ", ".join(map(str, values))
    raise InvalidValueError(
        f'{option} must name comparisons as "ARM - BASELINE" with values of {compared.axis} '
        f'({known}), got "{name}"',
        nearest(pair, (f"{arm} - {baseline}" for arm, baseline in compared.pairs)),
    )


def _cell(option: str, name: str, place: str, compared: Compared) -> frozenset[tuple[str, Any]]:
    """Return the values of the other axes; none for the comparison over all cells."""
    others = {axis: v for axis, v in compared.axes.items() if axis != compared.axis}
    if not place:
        return frozenset()
    cell: dict[str, Any] = {}
    # A comma inside a value, as in (1.0, 2.0), is not followed by "axis=".
    for part in re.split(r",\s*(?=\w+\s*=)", place):
        axis, _, text = (word.strip() for word in part.partition("="))
        if axis not in others:
            raise InvalidValueError(
                f'{option} names "{name}", but "{axis}" is not an axis beside {compared.axis}',
                nearest(axis, others),
            )
        matches = [value for value in others[axis] if _same(value, text)]
        if not matches:
            raise InvalidValueError(
                f'{option} names "{name}", but {text or "nothing"} is not a value of {axis}',
                nearest(text, map(str, others[axis])),
            )
        cell[axis] = matches[0]
    missing = [axis for axis, values in others.items() if axis not in cell and len(values) > 1]
    if missing:
        raise InvalidValueError(f'{option} names "{name}" without a value of {missing[0]}')
    return frozenset({**{axis: values[0] for axis, values in others.items()}, **cell}.items())


def _same(value: Any, text: str) -> bool:
    if str(value) == text:
        return True
    try:
        return not isinstance(value, str | bool) and float(text) == value
    except ValueError:
        return False
