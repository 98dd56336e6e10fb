"""`thresher data bench`: measure how fast images are read."""

from dataclasses import asdict, dataclass
from pathlib import Path

from thresher.cli.columns import columns
from thresher.cli.commands import Outcome
from thresher.cli.packs import open_pack
from thresher.lab.reading import BenchOptions
from thresher.lab.reading import bench as measure
from thresher.options import option


@dataclass(frozen=True, kw_only=True)
class BenchConfig(BenchOptions):
    pack: str = option("digits", positional=True)
    """Folder of a pack, or its name in the cache."""
    out: Path | None = option(None)
    """File for the figure (.svg, .png or .pdf)."""


def bench(config: BenchConfig) -> Outcome:
    """Measure how fast images are read from a pack, a folder of files and other containers.

    Batches are read in sequence and at random, from the system's file cache, and compared with a
    memory copy of the same bytes. Tar and TFRecord files cannot be read at random.
    """
    from thresher.report.reading_figure import check_suffix, reading_figure

    if config.out is not None:
        check_suffix(config.out)
    result = measure(open_pack(config.pack), config)
    shape = "×".join(map(str, result.image_shape))
    title = f"{result.pack}: {result.images:,} images of {shape}"
    table = columns(
        title,
        "container|access|images/s|of a memory copy",
        [
            (r.container, r.access, f"{r.images_per_s:,.0f}", f"{r.ratio_to_memory_copy:.4f}")
            for r in result.results
        ],
    )
    data = asdict(result)
    if config.out is not None:
        reading_figure(result.rates, title, config.out)
        data["figure"] = str(config.out)
    return Outcome(data, table)
