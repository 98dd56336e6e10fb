"""Find a cluster: one that ships with Thresher, a TOML file, or this machine."""

from importlib import resources
from pathlib import Path

from thresher.errors import InvalidValueError, NotFoundError, nearest
from thresher.scaling.cluster import Cluster, parse_cluster
from thresher.scaling.local import local_cluster


def cluster_names() -> list[str]:
    """Return the names of the clusters that ship with Thresher, and `local`."""
    files = resources.files("thresher.scaling").joinpath("clusters").iterdir()
    return sorted({f.name[:-5] for f in files if f.name.endswith(".toml")} | {"local"})


def load_cluster(name: str | Path) -> Cluster:
    """Load a cluster: a name (`summit`), a file (`mine.toml`) or `local`, which is this machine,
    measured the first time (about fifteen seconds)."""
    text = str(name)
    if text == "local":
        return local_cluster()
    if text.endswith(".toml") or "/" in text:
        path = Path(text)
        try:
            content = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise InvalidValueError(f"{path} is not a cluster file: not a text file") from None
        except OSError as error:
            raise NotFoundError(f"cannot read cluster file {path}: {error.strerror}") from None
        return parse_cluster(content, path.stem, str(path))
    if text not in cluster_names():
        raise NotFoundError(
            f'unknown cluster "{text}"', f"{nearest(text, cluster_names())}, or give a FILE.toml"
        )
    source = resources.files("thresher.scaling").joinpath("clusters", f"{text}.toml")
    return parse_cluster(source.read_text(encoding="utf-8"), text, text)
