"""`thresher scale …`: what communication costs, and how far it scales."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from thresher.cli.columns import columns
from thresher.cli.commands import Outcome
from thresher.cli.compare import compare as compare
from thresher.cli.packs import ensure_pack
from thresher.errors import ThresherError


@dataclass(frozen=True)
class Measure:
    model: str
    """The network: a built-in name, timm:NAME, torchvision:NAME or package.module:function."""
    out: Path
    """The profile to write (JSON); the figure goes beside it as .png."""
    batch_size: int = 64
    """The global batch B; layers are timed at B, B/2, B/4 … 1."""
    workers: int = 1
    """Processes to start here for the all-reduce and the overlap in a real step."""
    data: str | None = None
    """A pack: gives classes and image size, and its reading speed is measured."""
    classes: int = 10
    """Classes of the network, where no pack says."""
    image_size: int = 32
    """Side of the random images, where no pack says."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """What the layers compute in."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to measure."""
    seconds_per_batch: float = 1.0
    """How long to repeat each batch size."""


@dataclass(frozen=True)
class Predict:
    profile: Path
    """A profile made by `thresher scale measure`."""
    cluster: str = "local"
    """summit, 8xa100, 8xh100, 100gbe, 10gbe, local (this machine), or a FILE.toml of your own."""
    workers: str = "1,2,4,8,16,32,64,128,256,512,1024,2048,4096"
    """Numbers of workers, separated by commas."""
    scaling: Literal["strong", "weak"] = "weak"
    """strong: the global batch stays and is split; weak: every worker holds the batch."""
    model: str | None = None
    """Refuse the profile where it is of another model than this."""
    batch_size: int = 0
    """The batch on one worker (0: the profile's)."""
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    """What the layers compute in."""
    allreduce: Literal["best", "ring", "tree", "hierarchical", "torus"] = "best"
    """How gradients are summed; best takes the cheapest for each message."""
    compress: str = "none"
    """none, fp16, bf16, int8, topk:SHARE or powersgd:RANK."""
    engine: Literal["ddp", "horovod"] = "ddp"
    """DDP's static buckets, or Horovod's dynamic queue."""
    bucket_mb: float = 25.0
    """DDP's bucket size in MiB."""
    fusion_mb: float = 128.0
    """Horovod's fusion buffer in MiB."""
    cycle_ms: float = 1.0
    """Horovod's cycle time in milliseconds."""
    figure: Path | None = None
    """Draw efficiency against workers here."""


def measure(config: Measure) -> Outcome | None:
    """Measure what a step costs here: each layer forward and backward at batches B, B/2 … 1,
    gradient bytes by layer and bucket, the all-reduce, its overlap in a real step, and reading.

    Under torchrun or srun the all-reduce and the step are those of that group, over its links.
    """
    from thresher.distributed.group import placement
    from thresher.paths import disk_errors
    from thresher.report.scaling_figures import profile_figure
    from thresher.scaling.compute import amdahl
    from thresher.scaling.measure import bucket_table
    from thresher.scaling.measure import measure as run

    ensure_pack(config.data)
    with disk_errors(config.out):
        config.out.parent.mkdir(parents=True, exist_ok=True)
    profile = run(
        config.model,
        config.batch_size,
        config.workers,
        config.data,
        config.classes,
        config.image_size,
        config.precision,
        config.device,
        config.seconds_per_batch,
    )
    if placement().rank:
        return None  # rank 0 writes and prints
    profile.save(config.out)
    picture = config.out.with_suffix(".png")
    profile_figure(profile, picture)
    bound = amdahl(profile)
    data = {
        "profile": str(config.out),
        "figure": str(picture),
        "model": profile.model,
        "device": profile.device,
        "parameters": profile.parameters,
        "gradient_bytes": profile.gradient_bytes,
        "buckets": bucket_table(profile),
        "batches": profile.batches,
        "amdahl": bound,
        "allreduce": profile.allreduce,
        "overlap": profile.overlap,
        "input": profile.input,
    }
    return Outcome(data, _measured(profile, bound, picture))


def _measured(profile: Any, bound: dict[str, float], picture: Path) -> str:
    times = [(b.batch, b.forward_s, b.backward_s, b.optimizer_s, b.step_s) for b in profile.batches]
    table = columns(
        f"{profile.model} on {profile.device['name']}, "
        f"{profile.gradient_bytes / 1e6:,.1f} MB of gradients",
        ("batch", "forward ms", "backward ms", "optimiser ms", "step ms", "images/s"),
        [(str(n), *(_ms(t) for t in parts), f"{n / parts[-1]:,.0f}") for n, *parts in times],
    )
    lines = [
        table,
        "",
        f"Were communication free, {100 * bound['serial']:.1f} % of the step would not scale: at "
        f"most {bound['bound']:.1f}× on any number of workers; batch {bound['hard']:.0f} ends at "
        f"{bound['hard']:.0f} workers, measured there {bound['measured']:.1f}×.",
    ]
    if profile.allreduce:
        a = profile.allreduce
        rate = 1e-9 / a["seconds_per_byte"] if a["seconds_per_byte"] else float("inf")
        lines.append(
            f"All-reduce of {a['workers']} workers ({a['backend']}): "
            f"{1e6 * a['latency_s']:,.0f} µs a message and {rate:,.2f} GB/s "
            f"(fit off by {100 * a['error']:.0f} %)."
        )
    if profile.overlap:
        o = profile.overlap
        lines.append(
            f"A real step of {o['workers']} workers: {1e3 * o['step_s']:,.1f} ms, of which "
            f"{1e3 * o['exposed_s']:,.1f} ms wait for gradients ({100 * o['hidden']:.0f} % hidden)."
        )
    if profile.input:
        lines.append(f"Reading: {profile.input['images_per_s']:,.0f} images/s a worker.")
    lines.append(f"Figure: {picture}")
    return "\n".join(lines)


def predict(config: Predict) -> Outcome:
    """Predict the step on any number of workers of a cluster: computation, communication (and
    what of it shows), input, efficiency, and which limit ends it. Low and high bound each step.
    """
    from thresher.scaling import predict as p
    from thresher.scaling.cluster import load
    from thresher.scaling.pipeline import MEGA, Horovod
    from thresher.scaling.profile import Profile

    workers = parse_workers(config.workers)
    cluster = load(config.cluster)
    profile = Profile.load(config.profile, config.model)
    if config.batch_size < 0:
        raise ThresherError(f"a batch of {config.batch_size} holds nothing", "--batch-size 64")
    if min(config.bucket_mb, config.fusion_mb, config.cycle_ms) <= 0:
        raise ThresherError("bucket, fusion buffer and cycle time must be above zero")
    setting = p.Setting(
        scaling=config.scaling,
        batch_size=config.batch_size,
        precision=config.precision,
        allreduce=config.allreduce,
        compress=config.compress,
        engine=config.engine,
        bucket_mb=config.bucket_mb,
        horovod=Horovod(config.cycle_ms * 1e-3, config.fusion_mb * MEGA),
    )
    rows = p.predict(profile, cluster, workers, setting)
    stop = p.stops_paying(rows)
    others = p.alternatives(profile, cluster, workers, setting)
    from thresher.scaling.compute import measured_here

    here = measured_here(profile, cluster, config.precision)
    data = {
        "model": profile.model,
        "cluster": cluster.name,
        "scaling": config.scaling,
        "compute": "measured" if here else "roofline",
        "rows": [row.as_dict() for row in rows],
        "stops_paying_at": stop.workers if stop else None,
        "limit": stop.limit if stop else None,
        "alternatives": others,
    }
    if config.figure is not None:
        from thresher.report.scaling_figures import efficiency_figure

        efficiency_figure(
            {config.engine: [(row.workers, row.efficiency) for row in rows]}, config.figure
        )
    return Outcome(data, _predicted(data, rows, cluster.title, stop))


def parse_workers(text: str) -> list[int]:
    """`1,2,4` as ascending numbers without repeats."""
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ThresherError(
            f'"{text}" is not a list of numbers of workers', "--workers 1,8,64"
        ) from None
    return found


def _ms(seconds: float) -> str:
    """Milliseconds with three figures that mean something."""
    return f"{1e3 * seconds:,.0f}" if seconds >= 0.1 else f"{1e3 * seconds:.3g}"


def _predicted(data: dict[str, Any], rows: list[Any], title: str, stop: Any) -> str:
    table = columns(
        f"{data['model']} on {title}, {data['scaling']} scaling (milliseconds a step)",
        (
            "workers",
            "batch",
            "compute",
            "comm.",
            "exposed",
            "input",
            "step",
            "low–high",
            "images/s",
            "eff. %",
            "low–high",
            "limit",
        ),
        [
            (
                f"{r.workers:,}",
                f"{r.batch_size:,}",
                *(_ms(t) for t in (r.compute_s, r.communication_s, r.exposed_s, r.input_s)),
                _ms(r.step_s),
                f"{_ms(r.step_low_s)}–{_ms(r.step_high_s)}",
                f"{r.images_per_s:,.0f}",
                f"{100 * r.efficiency:.0f}",
                f"{100 * r.efficiency_low:.0f}–{100 * r.efficiency_high:.0f}",
                r.limit,
            )
            for r in rows
        ],
    )
    other = columns(
        f"At {rows[-1].workers:,} workers, otherwise",
        ("engine", "all-reduce", "precision", "compress", "images/s", "eff. %", "stops", "limit"),
        [
            (
                a["engine"],
                a["allreduce"],
                a["precision"],
                a["compress"],
                f"{a['images_per_s']:,.0f}",
                f"{100 * a['efficiency']:.1f}",
                f"{a['stops_paying_at']:,}" if a["stops_paying_at"] else "–",
                a["limit"],
            )
            for a in data["alternatives"]
        ],
    )
    how = "as measured on this device"
    if data["compute"] == "roofline":
        how = "carried over from another device by a roofline, which is why the bounds are wide"
    verdict = (
        f"It stops paying at {stop.workers:,} workers; what stops it: {stop.limit}."
        if stop
        else "Every step up in this list brings at least half of what it should."
    )
    return "\n".join([table, "", verdict, f"Compute times are {how}.", "", other])
