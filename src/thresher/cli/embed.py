"""`thresher embed`: penultimate features of a trained network."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from thresher.cli.commands import Outcome
from thresher.cli.packs import ensure_pack
from thresher.errors import ThresherError

if TYPE_CHECKING:
    from thresher.data.pack import Pack
    from thresher.models.embed import Network
    from thresher.models.features import Features


@dataclass(frozen=True, kw_only=True)
class Embed:
    data: str
    """A pack's folder, or its name in the cache."""
    out: str
    """The folder to write the features to."""
    run: Annotated[str, tyro.conf.arg(aliases=["--from-run"])] = ""
    """The training run whose network to use (torchrun takes --run for its own: see docs)."""
    model: str = ""
    """Instead of a run: a model by name, with --weights."""
    weights: str = ""
    """Pretrained weights for --model: a safetensors file or a state dict."""
    split: str = "train"
    """Which samples: train, test, validation or all."""
    dtype: Literal["float16", "float32"] = "float16"
    """Precision that the features are stored in."""
    batch_size: int = 512
    """Samples at once on each worker."""
    crop: int = 0
    """With --model: side of the middle crop; 0: the whole image."""
    image_size: int = 0
    """With --model: side that encoded images are decoded to."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto: a GPU if there is one."""


def embed(config: Embed) -> Outcome | None:
    """Compute the penultimate features of a pack with a trained network.

    In evaluation mode and without augmentation. Under torchrun the workers share the samples; a
    killed call goes on where it stopped when it is given again. What it writes is a .npy file with
    ids beside it, which `thresher select` reads.
    """
    from thresher.data.pack import Pack
    from thresher.distributed.group import placement
    from thresher.models import embed as embedding

    try:
        ensure_pack(config.data)
        pack = Pack.open(config.data)
        network = _network(config, pack)
        options = embedding.EmbedOptions(
            config.split, config.dtype, config.batch_size, config.device
        )
        features = embedding.embed(network, pack, config.out, options)
    except ThresherError:
        if placement().rank:
            # Rank 0 says the same sentence.
            raise SystemExit(2) from None
        raise
    return None if placement().rank else _outcome(config, features)


def _network(config: Embed, pack: "Pack") -> "Network":
    from thresher.models.embed import Network

    if config.run and (config.model or config.weights):
        raise ThresherError(
            "--run and --model with --weights exclude each other", "give the run, or the file"
        )
    if config.run:
        return Network.from_run(config.run, pack)
    if not config.model or not config.weights:
        raise ThresherError(
            "there is no network to embed with", "give --run RUN, or --model NAME --weights FILE"
        )
    crop, size = config.crop or None, config.image_size or None
    return Network.from_weights(config.model, config.weights, pack, crop, size)


def _outcome(config: Embed, features: "Features") -> Outcome:
    meta = features.meta
    keys = ("samples", "dimension", "dtype", "split", "model", "fingerprint", "seconds", "workers")
    data = {"path": config.out, **{key: meta[key] for key in keys}}
    accuracy = None
    if features.probabilities is not None and features.labels is not None:
        accuracy = float((features.probabilities.argmax(1) == features.labels).mean())
    data["accuracy"] = accuracy
    text = (
        f"{meta['samples']:,} × {meta['dimension']} features of {meta['model']} as {meta['dtype']} "
        f"in {config.out}, {meta['seconds']:,.1f} s"
    )
    if accuracy is not None:
        text += f"; the network is right on {100 * accuracy:.2f} % of these samples"
    return Outcome(data, text)
