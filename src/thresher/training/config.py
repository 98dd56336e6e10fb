"""What a person may ask of one training run. No torch here: the command line reads this first."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args

from thresher.errors import ThresherError, nearest

Rule = Literal["none", "linear", "sqrt", "legw"]
Schedule = Literal["constant", "step", "poly", "cosine"]
Optimizer = Literal["sgd", "nesterov", "lars", "lamb", "adamw"]
Precision = Literal["fp32", "bf16", "fp16", "fp64"]
Compression = Literal["none", "fp16", "bf16", "int8", "powersgd", "topk"]
Reduce = Literal["default", "ring", "hierarchical", "torus"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One run: data, network, batch, rate, workers, and what to record."""

    data: str
    """A pack's folder, or its name in the cache."""
    out: str
    """The folder of the run; a finished run there is never overwritten."""
    model: str = "tiny"
    """tiny, resnet20, resnet18, resnet18-cifar, timm:NAME, torchvision:NAME or package.mod:f."""
    selection: str = ""
    """Train only on the samples that this selection (.parquet) keeps."""
    epochs: float = 10.0
    """How many times the training samples are seen (see --budget)."""
    batch_size: int = 128
    """The global batch; with --scaling weak, the batch of each worker."""
    scaling: Literal["strong", "weak"] = "strong"
    """strong: the batch is split over the workers; weak: it grows with them."""
    workers: int = 1
    """Processes to train with on this machine (under torchrun or srun: they decide)."""
    lr: float = 0.1
    """Learning rate at the base batch."""
    base_batch: int = 0
    """The batch that --lr and --warmup-epochs belong to; 0: the batch of this run."""
    lr_rule: Rule = "none"
    """How the rate grows from the base batch to this one."""
    warmup_epochs: float = 0.0
    """Epochs over which the rate climbs from zero (LEGW multiplies them)."""
    schedule: Schedule = "cosine"
    """How the rate falls after the warm-up."""
    step_epochs: tuple[float, ...] = (30.0, 60.0, 80.0)
    """Epochs at which --schedule step multiplies the rate by 0.1."""
    poly_power: float = 2.0
    """Exponent of --schedule poly."""
    optimizer: Optimizer = "sgd"
    """The optimiser."""
    momentum: float = 0.9
    """Momentum of sgd, nesterov and lars; the first moment's decay of lamb and adamw."""
    weight_decay: float = 5e-4
    """Weight decay."""
    decay_norm_bias: bool = True
    """Decay biases and norm layers as well."""
    label_smoothing: float = 0.0
    """Share of the target spread over all classes."""
    precision: Precision = "fp32"
    """Arithmetic of the forward and backward pass (fp64 makes the weights double as well)."""
    micro_batch: int | Literal["auto"] = 0
    """Most samples on a device at once; more are accumulated. 0: all; auto: as many as fit."""
    batch_norm: str = "local"
    """Statistics of the worker's part (local), the whole batch (sync) or fixed groups (ghost:N)."""
    budget: Literal["epochs", "samples", "steps"] = "epochs"
    """What --epochs holds equal between full and filtered data: passes, samples seen or steps."""
    target_loss: float | None = None
    """Stop when the loss on validation (on test, where nothing is held out) is this low."""
    target_accuracy: float | None = None
    """Stop when the accuracy there, from 0 to 1, is this high."""
    evaluate_every: int = 1
    """Epochs between evaluations; 0: only at the end."""
    crop_padding: int = -1
    """Pixels of padding around the random crop; 0: no random crop; -1: an eighth of the side."""
    crop: int = 0
    """Side of the crop in pixels; 0: the image's own."""
    image_size: int = 0
    """Side that encoded images of different sizes are decoded to (raw ones have their own)."""
    flip: bool | None = None
    """Mirror half of the images; None: those in colour (a mirrored digit is another shape)."""
    cutout: int = 0
    """Side in pixels of the square blanked out of each image; 0: none."""
    validation: float = 0.0
    """Held out of the training samples: a count, or a share below 1."""
    split_seed: int = 0
    """Which samples are held out."""
    seed: int = 0
    """Weights at the start, order of the samples, augmentation."""
    compress: Compression = "none"
    """How gradients are squeezed on their way to the other workers."""
    average_every: int = 1
    """Local SGD: average weights every so many steps instead of gradients every step."""
    delay: int = 0
    """1: apply each step's gradient one step late, so that its reduce overlaps the next step."""
    allreduce: Reduce = "default"
    """Algorithm of the all-reduce."""
    bucket_mb: float = 25.0
    """Size of DDP's gradient buckets."""
    engine: Literal["ddp", "horovod"] = "ddp"
    """What moves the gradients."""
    checkpoint_every: int = 0
    """Steps between checkpoints; 0: one a minute."""
    resume: bool = False
    """Go on from the newest checkpoint in the folder (from the start where there is none)."""
    tensorboard: bool = False
    """Write TensorBoard events into the run's folder."""
    trace: bool = False
    """Write a Chrome trace of a few steps into the run's folder."""
    noise_scale: bool = False
    """Measure the gradient noise scale, and log the batch size that it suggests."""
    compile: bool = False
    """Compile the network with torch.compile."""
    graph: Literal["auto", "on", "off"] = "auto"
    """Capture whole training steps in a CUDA graph; auto: where it can be done."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto: a GPU if there is one."""
    weights: str = ""
    """Start from these weights (safetensors, or a state dict); another head is replaced."""
    dynamic: str = "none"
    """Prune while training: none, infobatch or dynamic-random."""
    record_dynamics: bool = False
    """Record each sample's EL2N, forgetting and loss in dynamics.parquet."""
    threads: int = 0
    """CPU threads of each worker; 0: the cores divided among the workers."""
    max_restarts: int = 3
    """How often a group that lost a worker is restarted from its last checkpoint."""

    def to_dict(self) -> dict[str, Any]:
        """As saved in config.json."""
        return {**dataclasses.asdict(self), "step_epochs": list(self.step_epochs)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TrainConfig":
        """From config.json or a study's table; an unknown name is refused."""
        known = {field.name for field in dataclasses.fields(cls)}
        for name in values:
            if name not in known:
                raise ThresherError(f'training has no option "{name}"', nearest(name, known))
        values = dict(values)
        if "step_epochs" in values:
            values["step_epochs"] = tuple(values["step_epochs"])
        return cls(**values)


# What may differ between a run and its resumption: it changes neither data nor path.
MAY_CHANGE = frozenset(
    {
        "out",
        "workers",
        "resume",
        "checkpoint_every",
        "tensorboard",
        "trace",
        "device",
        "graph",
        "compile",
        "threads",
        "micro_batch",
        "max_restarts",
        "evaluate_every",
        "allreduce",
        "bucket_mb",
    }
)


def check(config: TrainConfig) -> None:
    """Refuse what makes no sense whatever the data is: one sentence for the first such thing."""
    _in_choices(config)
    positive = {
        "epochs": config.epochs,
        "batch-size": config.batch_size,
        "workers": config.workers,
        "average-every": config.average_every,
        "bucket-mb": config.bucket_mb,
        "poly-power": config.poly_power,
    }
    for name, value in positive.items():
        if not value > 0:
            raise ThresherError(f"--{name} is {value}", "it must be above 0")
    not_negative = {
        "lr": config.lr,
        "base-batch": config.base_batch,
        "warmup-epochs": config.warmup_epochs,
        "weight-decay": config.weight_decay,
        "validation": config.validation,
        "checkpoint-every": config.checkpoint_every,
        "evaluate-every": config.evaluate_every,
        "crop-padding": config.crop_padding + 1,
        "crop": config.crop,
        "image-size": config.image_size,
        "cutout": config.cutout,
        "threads": config.threads,
        "seed": config.seed,
        "split-seed": config.split_seed,
        "max-restarts": config.max_restarts,
        "micro-batch": 0 if config.micro_batch == "auto" else config.micro_batch,
    }
    for name, value in not_negative.items():
        if not value >= 0:
            raise ThresherError(f"--{name} is {value}", "it must not be below 0")
    if not 0 <= config.momentum < 1:
        raise ThresherError(f"--momentum is {config.momentum}", "it must be in 0 … 1")
    if not 0 <= config.label_smoothing < 1:
        raise ThresherError(f"--label-smoothing is {config.label_smoothing}", "it is a share")
    if config.target_accuracy is not None and not 0 < config.target_accuracy <= 1:
        raise ThresherError(f"--target-accuracy is {config.target_accuracy}", "it is a share of 1")
    if config.delay not in (0, 1):
        raise ThresherError(f"--delay is {config.delay}", "gradients may be 0 or 1 step late")
    if config.delay and config.average_every > 1:
        raise ThresherError("--delay and --average-every exclude each other", "choose one")
    if config.average_every > 1 and (config.compress != "none" or config.allreduce != "default"):
        raise ThresherError(
            "--average-every sends no gradients, so --compress and --allreduce mean nothing",
            "leave them out",
        )
    if config.delay and config.precision == "fp16":
        raise ThresherError("--delay and --precision fp16 exclude each other", "use bf16")
    if config.engine == "horovod" and (
        config.average_every > 1 or config.delay or config.allreduce != "default"
    ):
        raise ThresherError(
            "--engine horovod brings its own exchange",
            "leave out --average-every, --delay and --allreduce",
        )
    ghost_size(config.batch_norm)


def ghost_size(mode: str) -> int | None:
    """N of `ghost:N`; None for local and sync."""
    if mode in ("local", "sync"):
        return None
    kind, _, size = mode.partition(":")
    if kind == "ghost" and size.isdigit() and int(size) > 0:
        return int(size)
    raise ThresherError(f'there is no batch norm "{mode}"', "there is local, sync and ghost:N")


def _in_choices(config: TrainConfig) -> None:
    """The command line checks choices itself; a study's table comes here unchecked."""
    for field in dataclasses.fields(config):
        choices = [c for c in get_args(field.type) if isinstance(c, str)]
        value = getattr(config, field.name)
        if choices and isinstance(value, str) and value not in choices:
            flag = field.name.replace("_", "-")
            raise ThresherError(f'--{flag} cannot be "{value}"', nearest(value, choices))
