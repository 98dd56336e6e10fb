"""Step times on the test bed of hosts: measured for real, and predicted from one host and two."""

import json
import os
import sys
from dataclasses import dataclass, replace
from typing import Any

from thresher.distributed.group import end_at_once
from thresher.errors import ThresherError
from thresher.lab.shares import PERIOD_US, enter_share
from thresher.lab.testbed import Testbed
from thresher.scaling.cluster import Cluster, Device
from thresher.scaling.costs import fit_ring
from thresher.scaling.predict import Setting, step
from thresher.scaling.profile import BatchTimes, Layer, Profile

SIZES = (2**10, 2**14, 2**17, 2**20, 2**22)


@dataclass(frozen=True)
class Case:
    """What to run on every host: a model at a batch of its own (weak scaling)."""

    model: str
    batch: int
    image_size: int = 32
    classes: int = 10
    seconds: float = 6.0


def run_case(
    bed: Testbed, case: Case, hosts: int, groups: list[str] | None, what: str
) -> dict[str, Any]:
    """Run `what` (profile, links or step) on the first `hosts` hosts; what the first found."""
    task = json.dumps({**case.__dict__, "groups": groups, "what": what})
    done = bed.run(
        [sys.executable, "-m", "thresher.lab.calibrate", task],
        hosts=hosts,
        environment={"OMP_NUM_THREADS": "1"},
    )
    found: dict[str, Any] = json.loads(done[0].stdout.strip().splitlines()[-1])
    return found


def profile_of(case: Case, found: dict[str, Any]) -> Profile:
    """The one-host measurement as a profile."""
    layers = [
        Layer(
            **{
                **item,
                "forward_s": {case.batch: item["forward_s"]},
                "backward_s": {case.batch: item["backward_s"]},
            }
        )
        for item in found["layers"]
    ]
    parameters = sum(layer.parameters for layer in layers)
    return Profile(
        model=case.model,
        classes=case.classes,
        channels=3,
        image_size=case.image_size,
        batch_size=case.batch,
        precision="fp32",
        device={"kind": "cpu", "name": "host", "threads": 1, "cores": 1},
        parameters=parameters,
        gradient_bytes=4 * parameters,
        sample_bytes=3 * case.image_size**2,
        layers=layers,
        batches=[BatchTimes(**found["times"])],
    )


def cluster_of(points: list[tuple[float, float]], extra_s: float = 0.0) -> Cluster:
    """Hosts of one device each, joined by the links that two of them measured."""
    fit = fit_ring(points, 2)
    return Cluster(
        name="test bed",
        title="hosts in network namespaces",
        device=Device("host", 4, 5, {"fp32": 0.01}),
        devices_per_node=1,
        nodes=8,
        inner_latency_s=fit.latency_s,
        inner_bytes_s=1 / fit.seconds_per_byte,
        outer_latency_s=fit.latency_s + extra_s,
        outer_bytes_s=1 / fit.seconds_per_byte,
        storage_bytes_s=1e12,
        storage_node_bytes_s=1e12,
    )


@dataclass(frozen=True)
class Predictor:
    """Calibrated on one host (layers, step) and two (links, one step)."""

    profile: Profile
    cluster: Cluster
    stall_s: float
    """Of what two hosts took beyond the model, the part that each step of the ring pays again: a
    message needs both ends, and either may stand still for a period of its control group."""
    drag_s: float
    """The rest of it, on two hosts; it goes with the bytes."""

    def seconds(self, hosts: int, bucket_mb: float = 25.0) -> float:
        """Predicted step on `hosts`: 2(p−1) steps of the ring, 2(p−1)/p of the gradient's bytes."""
        setting = Setting(allreduce="ring", bucket_mb=bucket_mb)
        bare = step(self.profile, self.cluster, hosts, setting).step_s
        return bare + 2 * (hosts - 1) * self.stall_s + 2 * (hosts - 1) / hosts * self.drag_s


def calibrate(
    case: Case,
    alone: dict[str, Any],
    points: list[tuple[float, float]],
    two_s: float,
    held: bool = True,
) -> Predictor:
    """From the profile of one host, the links of two and one real step of two.

    `held`: the hosts are held to a share of a core, and so can stall.
    """
    plain = Predictor(profile_of(case, alone), cluster_of(points), 0.0, 0.0)
    surplus = two_s - plain.seconds(2)
    # A surplus below zero is the measurements' noise: it must not be paid out at every step.
    stall = min(max(0.0, surplus / 2), 2 * PERIOD_US * 1e-6) if held else 0.0
    return replace(plain, stall_s=stall, drag_s=surplus - 2 * stall)


def _worker(task: dict[str, Any]) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    from thresher.models.registry import build
    from thresher.scaling.layers import time_layers
    from thresher.scaling.links import time_allreduce, time_step

    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = int(os.environ["RANK"])
    model = build(task["model"], task["classes"], 3)
    shape = (3, task["image_size"], task["image_size"])
    if task["groups"]:
        # After the imports, which need no measuring and would take long at this speed.
        enter_share(task["groups"][rank])
    if task["what"] == "profile":
        layers, batches = time_layers(
            model,
            shape,
            task["classes"],
            task["batch"],
            torch.device("cpu"),
            seconds_per_batch=task["seconds"],
            batches=[task["batch"]],
        )
        return {
            "layers": [
                {
                    **layer.__dict__,
                    "forward_s": layer.forward_s[task["batch"]],
                    "backward_s": layer.backward_s[task["batch"]],
                }
                for layer in layers
            ],
            "times": batches[0].__dict__,
        }
    dist.init_process_group("gloo")
    try:
        if task["what"] == "links":
            return {"points": time_allreduce(SIZES, seconds=task["seconds"] / 4)}
        return time_step(model, shape, task["classes"], task["batch"], seconds=3 * task["seconds"])
    finally:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    try:
        print(json.dumps(_worker(json.loads(sys.argv[1]))), flush=True)
    except ThresherError as error:
        raise SystemExit(str(error)) from None
    end_at_once(0)
