"""Help texts of options: the strings below the fields of a dataclass."""

import ast
import dataclasses
import functools
import inspect
import itertools
import re
import textwrap


@functools.cache
def help_texts(config: type) -> dict[str, str]:
    """Return the string below each field, of the class and its bases; one line per paragraph."""
    texts: dict[str, str] = {}
    for base in reversed(config.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError, ValueError, SyntaxError):
            continue  # made at run time: it has no source of its own
        if not isinstance(tree, ast.ClassDef):
            continue
        for statement, following in itertools.pairwise(tree.body):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
                and isinstance(following.value.value, str)
            ):
                text = inspect.cleandoc(following.value.value)
                texts[statement.target.id] = re.sub(r"(?<!\n)\n(?!\n)", " ", text)
    return texts
