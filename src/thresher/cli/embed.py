"""`thresher embed`: compute the penultimate features of a trained network."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from thresher.cli.commands import Outcome
from thresher.cli.packs import open_pack
from thresher.errors import ThresherError
from thresher.models.embed_config import EmbedConfig
from thresher.models.features import Features


@dataclass(frozen=True, kw_only=True)
class Embed(EmbedConfig):
    data: str
    """Pack to embed: a folder, or a name in the cache."""
    out: Path
    """Folder to write the features to."""
    # torchrun takes --run for itself.
    run: Annotated[Path | None, tyro.conf.arg(aliases=["--from-run"])] = None


def embed(config: Embed) -> Outcome | None:
    """Compute the penultimate features of a pack with a trained network.

    Runs in evaluation mode and without augmentation. Under torchrun the workers share the samples;
    an interrupted command resumes when it is repeated. Writes a folder with the features
    and ids, which `thresher select --features` reads.
    """
    from thresher.distributed.group import placement
    from thresher.models.embed import embed_pack

    try:
        features = embed_pack(config, open_pack(config.data), config.out)
    except ThresherError:
        if placement().rank:
            raise SystemExit(2) from None  # rank 0 reports the same error
        raise
    return None if placement().rank else _outcome(config, features)


def _outcome(config: Embed, features: Features) -> Outcome:
    meta = features.meta
    keys = ("samples", "dimension", "dtype", "split", "model", "fingerprint", "seconds", "workers")
    data = {"path": str(config.out), **{key: getattr(meta, key) for key in keys}}
    data["accuracy"] = features.accuracy
    text = (
        f"{meta.samples:,} × {meta.dimension} features of {meta.model} as {meta.dtype} "
        f"in {config.out}, {meta.seconds:,.1f} s"
    )
    if features.accuracy is not None:
        percent = 100 * features.accuracy
        text += f"; the network classifies {percent:.2f} % of these samples correctly"
    return Outcome(data, text)
