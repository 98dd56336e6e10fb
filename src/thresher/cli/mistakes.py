"""Sentences about arguments that do not parse, made from the boxes that tyro prints."""

import re
from collections.abc import Sequence

from thresher.errors import nearest


def explain(box: str) -> tuple[str, str]:
    """Return what is wrong with the arguments, and what to do if that is known."""
    # tyro colours what it prints on a terminal.
    box = re.sub(r"\x1b\[[0-9;]*m", "", box).partition("For full helptext")[0]
    # The options that it names stand at the fifth column of the frame.
    options = re.findall(r"^[│ ] {5}([^\s│]+)", box, re.M)
    lines = [line.strip(" │╭╮╰╯─\t") for line in box.splitlines()[1:]]
    words = " ".join(line for line in lines if line.strip("-"))
    if options and words.startswith("Missing from"):
        unknown = words.partition("Unrecognized options: ")[2].split()
        missing = [option for option in options if option not in unknown]
        return "; ".join([f"missing: {', '.join(missing)}", *_unknown(unknown)]), ""
    if listed := re.match(r"Unrecognized options: (.*?)(?: Perhaps| Arguments similar|$)", words):
        (unknown_text,) = _unknown(listed[1].split(", "))
        similar = {} if " or " in unknown_text else dict.fromkeys(options)
        return unknown_text, f"did you mean {' or '.join(similar)}?" if similar else ""
    for beyond in (" Argument helptext", " (required)"):
        words = words.partition(beyond)[0]
    return _about_value(words)


def _unknown(words: Sequence[str]) -> list[str]:
    """Return a sentence about words that were not expected, if there are any."""
    flags = [word for word in words if word.startswith("-")]
    if flags:
        return [f"there is no option {' or '.join(flags)}"]
    return [f"unexpected argument {', '.join(words)}"] if words else []


def _about_value(words: str) -> tuple[str, str]:
    if choice := re.match(r"invalid choice '(.*)' for argument '(.*?)'.*?\((.*?)\)", words):
        known = [word for word in re.findall(r"'(.*?)'", choice[3]) if word != "None"]
        return f'{choice[2]} cannot be "{choice[1]}"', nearest(choice[1], known)
    if empty := re.match(r"Missing value for argument '([\w-]+)", words):
        name = empty[1]
        return f"{name} needs a value" if name.startswith("-") else f"missing: {name.upper()}", ""
    if number := re.match(r"Error parsing (--[\w-]+): (invalid lit|could not con).*?'(.*)'", words):
        kind = "an integer" if number[2] == "invalid lit" else "a number"
        return f"{number[1]} must be {kind}, got {number[3]}", ""
    # tyro lists what each type of a union says.
    unread = re.match(r"Error parsing (--[\w-]+): (?:no type|Could not find).*?\[(.*?)\]", words)
    if unread:
        return f"{unread[1]} cannot be {unread[2].replace(chr(39), '')}", ""
    words = words.replace("'None', ", "").replace(", 'None'", "")
    return words.strip(" .") or "the arguments do not parse", ""
