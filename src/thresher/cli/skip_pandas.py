"""Start without pandas where it is installed."""

import sys
from importlib.machinery import ModuleSpec


class _Missing:
    """A finder that says that pandas is not installed."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not looked for now", name=name)
        return None


def skip_pandas() -> None:
    """Keep pyarrow, if it is loaded, from loading pandas, which takes 0.2 to 0.5 s.

    pyarrow loads it with the first value that it converts, only to see whether that is a pandas
    object. It looks again if something needs pandas, such as `Table.to_pandas`.
    """
    pyarrow = sys.modules.get("pyarrow")
    if pyarrow is None or "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _Missing)
    try:
        pyarrow.array([None])
    finally:
        sys.meta_path.remove(_Missing)
