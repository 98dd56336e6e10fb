"""Write the generated pages of the documentation from the code.

Three kinds: the Python API (mkdocstrings directives), the commands and the options (tables from
`thresher.options.describe`). `undocumented` names what lacks a docstring.
"""

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

import thresher
from thresher.cli.commands import COMMANDS, GROUPS, Command
from thresher.cli.parse import with_flags
from thresher.options import OptionInfo, describe

SOURCE = Path(__file__).resolve().parent.parent / "src"

API = {
    "Training": ("train", "TrainConfig", "RunResult"),
    "Data": ("Pack", "write_pack", "Selection", "Features"),
    "Auditing": ("audit", "AuditConfig", "Audit"),
    "In your own loop": ("prune", "NoiseScale", "report_result"),
    "Studies and reports": ("Study", "analyse", "write_report"),
}
"""Public names by heading; filters and errors have headings of their own."""

EXTENDING = {
    "Filters": ("thresher.select.filters.base",),
    "Sources": ("thresher.data.sources.base",),
    "Recipes": ("thresher.recipes.base",),
    "Options": ("thresher.options",),
    "Plugins": ("thresher.plugins",),
}
"""Modules that the author of a plugin uses."""


def pages() -> dict[str, str]:
    """Return the generated pages: file name to Markdown."""
    return {
        "api.md": _api(),
        "extending.md": _extending(),
        "commands.md": _commands(),
        "options.md": _options(),
    }


def public_names() -> list[str]:
    """Return the names of the Python API, without the version."""
    return [name for name in thresher.__all__ if not name.startswith("_")]


@functools.cache
def _package() -> Any:
    return griffe.load("thresher", search_paths=[str(SOURCE)])


def undocumented(package: Any = None, names: list[str] | None = None) -> list[str]:
    """Return every public name, public method and field without a docstring, as dotted paths."""
    package = package or _package()
    missing: list[str] = []
    for name in names or public_names():
        item = package[name]
        if item.is_alias:
            item = item.final_target
        if item.docstring is None:
            missing.append(item.path)
        if item.is_class:
            explained = _explained(item)
            members = _public_members(item, package.name)
            missing += [
                member.path
                for member in members
                if member.name not in explained and not _inherits_docstring(item, member)
            ]
    return list(dict.fromkeys(missing))


def _public_members(item: griffe.Class, package: str) -> Iterator[Any]:
    """Yield methods, properties and annotated fields that the package itself defines."""
    for name, listed in item.all_members.items():
        if name.startswith("_"):
            continue
        member: Any = listed.final_target if isinstance(listed, griffe.Alias) else listed
        if member.path.startswith(f"{package}.") and (
            member.is_function or "property" in member.labels or member.annotation is not None
        ):
            yield member


def _inherits_docstring(item: griffe.Class, member: Any) -> bool:
    """Return whether the member, or the same member of a base class, has a docstring."""
    classes = [item, *item.mro()]
    inherited = (cls.members[member.name] for cls in classes if member.name in cls.members)
    return member.docstring is not None or any(m.docstring is not None for m in inherited)


def _explained(item: griffe.Class) -> set[str]:
    """Return the fields that the docstring of a class explains under Args or Attributes."""
    if item.docstring is None:
        return set()
    sections = griffe.parse_google(item.docstring)
    kinds = (griffe.DocstringSectionKind.parameters, griffe.DocstringSectionKind.attributes)
    return {entry.name for section in sections if section.kind in kinds for entry in section.value}


def _api() -> str:
    named = {name for names in API.values() for name in names}
    filters = [name for name in public_names() if name not in named and name.endswith("Filter")]
    known = {*named, *filters, "ThresherError"}
    others = [name for name in public_names() if name not in known]
    groups = {**API, "Filters": tuple(filters), "Other": tuple(others)}
    lines = ["# Python API", "", "Every name below is imported from `thresher`:", ""]
    lines += ["```python", "from thresher import TrainConfig, train", "```", ""]
    for heading, names in groups.items():
        present = [name for name in names if name in public_names()]
        if present:
            lines += [f"## {heading}", ""]
            for name in present:
                path = _package()[name]
                target = path.final_target.path if path.is_alias else f"thresher.{name}"
                lines += _directive(target)
    lines += ["## Errors", "", *_directive("thresher.errors")]
    return "\n".join(lines)


def _directive(path: str) -> list[str]:
    """Return the lines that mkdocstrings replaces by the documentation of `path`."""
    return [f"::: {path}", "    options:", "      heading_level: 3", ""]


def _extending() -> str:
    lines = [
        "# Extending Thresher",
        "",
        "What a plugin uses; CONTRIBUTING shows complete ones.",
        "",
    ]
    for heading, modules in EXTENDING.items():
        lines += [f"## {heading}", ""]
        for module in modules:
            lines += _directive(module)
    return "\n".join(lines)


def _commands() -> str:
    lines = ["# Commands", "", "An option has the same name everywhere: the flag `--batch-size` is"]
    lines += ["`batch_size` in Python and in a study file. Every command also has `--json`.", ""]
    groups: list[str] = []
    for command in COMMANDS:
        first = command.words.split()[0]
        if first in GROUPS and first not in groups:
            groups.append(first)
            lines += [f"## thresher {first}", "", f"{GROUPS[first]}.".capitalize(), ""]
        level = "###" if first in GROUPS else "##"
        lines += [f"{level} thresher {command.words}", "", *_command(command), ""]
    return "\n".join(lines)


def _command(command: Command) -> list[str]:
    config, function = command.load()
    names = [info.name for info in describe(config)]
    text = with_flags(inspect.cleandoc(function.__doc__ or ""), names)
    return [text, "", "```text", _usage(command, config), "```", "", *_table(config)]


def _usage(command: Command, config: type) -> str:
    """Return the usage line: required options, and brackets for the rest."""
    words = [f"thresher {command.words}"]
    for info in _settable(config):
        if info.positional:
            words.append(info.name.upper())
        elif info.default is dataclasses.MISSING:
            words.append(f"{info.flag} {info.name.upper()}")
    return " ".join([*words, "[OPTIONS]"])


def _options() -> str:
    lines = [
        "# Options",
        "",
        "The configuration classes of training and studies.",
        "",
    ]
    for heading, config in option_classes():
        lines += [f"## {heading}", "", f"`{config.__module__}.{config.__qualname__}`", ""]
        lines += [*_table(config, as_flags=False), ""]
    return "\n".join(lines)


def option_classes() -> list[tuple[str, Any]]:
    """Return (heading, configuration dataclass) of the groups of training and study options."""
    from thresher.study.definition import StudyDefinition
    from thresher.study.local import LocalConfig
    from thresher.study.slurm import SlurmConfig
    from thresher.training.config import TrainConfig

    groups = reversed(TrainConfig.__bases__)
    return [
        *((f"Training: {group.__name__.removesuffix('Config')}", group) for group in groups),
        ("Study file", StudyDefinition),
        ('Study file: [executor] with kind = "local"', LocalConfig),
        ('Study file: [executor] with kind = "slurm"', SlurmConfig),
    ]


def _table(config: type, as_flags: bool = True) -> list[str]:
    """Return a Markdown table of options, named as flags or as Python parameters."""
    lines = ["| option | type | default | meaning |", "|---|---|---|---|"]
    infos = list(_settable(config))
    return lines + [_row(info, [info.name for info in infos] if as_flags else []) for info in infos]


def _settable(config: type) -> Iterator[OptionInfo]:
    """Yield the options that a user can set."""
    for info in describe(config):
        if info.name != "text" or config.__name__ != "StudyDefinition":  # the file, not a key
            yield info


def _row(info: OptionInfo, flags: list[str]) -> str:
    """Return a row; parameters named in `flags` are shown as flags."""
    default = "required" if info.default is dataclasses.MISSING else f"`{_shown(info.default)}`"
    meaning = with_flags(" ".join(info.help.split()), flags).replace("|", "\\|")
    bounds = "" if str(info.bounds) == "finite" else f" Must be {info.bounds}."
    shown = info.name.upper() if info.positional else info.flag if flags else info.name
    return f"| `{shown}` | {_type(info.type)} | {default} | {meaning}{bounds} |"


def _shown(value: Any) -> str:
    return "()" if value == () else str(value) if not isinstance(value, str) else f'"{value}"'


def _type(hint: Any) -> str:
    """Return a type as a reader writes it, for a table cell."""
    if typing.get_origin(hint) is typing.Annotated:
        return _type(typing.get_args(hint)[0])
    if typing.get_origin(hint) is typing.Literal:
        return " \\| ".join(f"`{choice}`" for choice in typing.get_args(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " \\| ".join(_type(member) for member in typing.get_args(hint))
    if hint is type(None):
        return "None"
    if typing.get_origin(hint) is tuple:
        return f"list of {_type(typing.get_args(hint)[0])}"
    if typing.get_origin(hint) is dict:
        return "table"
    return getattr(hint, "__name__", str(hint))
