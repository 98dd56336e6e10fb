"""The features of a run's network, made once and kept in the run's folder."""

import hashlib
from pathlib import Path

from thresher.data.pack import Pack
from thresher.models.features import Features
from thresher.paths import RunPaths


def features_folder(run: Path, pack: Pack) -> Path:
    """Where the training features of `pack` by this run's network are kept."""
    return run / f"features-{pack.fingerprint[:12]}"


def features_of_run(run: Path, pack: Pack, device: str = "auto") -> Features:
    """Features of the pack's training samples by a finished run's network.

    Those made before are taken if they are of the weights that lie there now. An interrupted
    call is gone on with.
    """
    from thresher.models.embed import EmbedOptions, Network, embed

    folder = features_folder(run, pack)
    if folder.exists():
        there = Features.open(folder)
        if there.meta.get("sha256") == _sha256(RunPaths(run).model):
            return there
        folder = folder.with_name(f"{folder.name}-{_sha256(RunPaths(run).model)[:12]}")
        if folder.exists():
            return Features.open(folder)
    return embed(Network.from_run(run, pack), pack, folder, EmbedOptions(device=device))


def _sha256(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
