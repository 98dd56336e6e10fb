"""What one data-parallel step did when, as rank 0 saw it: DDP's from the hook, Horovod's from its
own timeline file.

A *span* is {kind, begin_s, end_s, bytes, name}, seconds from the beginning of the step:

    forward, backward, wait (for gradients, after the last one was made), update
    bucket        DDP: a bucket, from full to summed
    negotiate     Horovod: a gradient, from made until all ranks agreed that all have it
    allreduce     Horovod: a gradient's time in the fused all-reduce
"""

import json
from pathlib import Path
from typing import Any

from thresher.errors import ThresherError

Span = dict[str, Any]


def span(kind: str, begin: float, end: float, size: int = 0, name: str = "") -> Span:
    return {"kind": kind, "begin_s": begin, "end_s": end, "bytes": size, "name": name}


def horovod_events(path: Path) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """tensor → activity → (begin, end) in seconds since the epoch, one pair per step.

    The file is Chrome's trace format with the tensors as processes; nested activities are closed
    by an unnamed E, so a stack per tensor tells which one ends.
    """
    text = path.read_text()
    try:
        # A run that was killed leaves the list open.
        events = json.loads(
            text if text.rstrip().endswith("]") else text.rstrip().rstrip(",") + "]"
        )
    except json.JSONDecodeError:
        raise ThresherError(f"{path} is not a timeline of Horovod") from None
    epoch, names = 0.0, {}
    open_: dict[int, list[tuple[str, float]]] = {}
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for event in events:
        pid, arguments = event.get("pid"), event.get("args", {})
        if event["ph"] == "M":
            if "start_time_since_epoch_in_micros" in arguments:
                epoch = arguments["start_time_since_epoch_in_micros"] * 1e-6
            elif "name" in arguments:
                names[pid] = arguments["name"]
        elif event["ph"] == "B":
            open_.setdefault(pid, []).append((event["name"], event["ts"]))
        elif event["ph"] == "E" and open_.get(pid):
            activity, begin = open_[pid].pop()
            pair = (epoch + begin * 1e-6, epoch + event["ts"] * 1e-6)
            found.setdefault(names.get(pid, str(pid)), {}).setdefault(activity, []).append(pair)
    return found


def horovod_spans(
    path: Path, made: dict[str, float], sizes: dict[str, int], begin: float
) -> list[Span]:
    """The spans of the step whose gradients were `made` at those seconds since the epoch."""
    events = horovod_events(path)
    spans = []
    for name, at in made.items():
        activities = events.get(f"allreduce.gradient.{name}", {})
        # Horovod's clock and ours agree to some microseconds.
        agreed = _first_after(activities.get("NEGOTIATE_ALLREDUCE", []), at)
        summed = _first_after(activities.get("GLOO_ALLREDUCE", []), at)
        if agreed is not None:
            spans.append(span("negotiate", at - begin, agreed[1] - begin, sizes[name], name))
        if summed is not None:
            times = (summed[0] - begin, summed[1] - begin)
            spans.append(span("allreduce", *times, sizes[name], name))
    return spans


def _first_after(pairs: list[tuple[float, float]], time_s: float) -> tuple[float, float] | None:
    return next((pair for pair in pairs if pair[1] >= time_s - 1e-4), None)


def covered(spans: list[Span], kinds: tuple[str, ...], window: tuple[float, float]) -> float:
    """Seconds of `window` in which at least one span of `kinds` was under way."""
    clipped = sorted(
        (max(s["begin_s"], window[0]), min(s["end_s"], window[1]))
        for s in spans
        if s["kind"] in kinds
    )
    total, reached = 0.0, window[0]
    for begin, end in clipped:
        begin = max(begin, reached)
        if end > begin:
            total += end - begin
            reached = end
    return total


def summary(spans: list[Span]) -> dict[str, float]:
    """Seconds of communication, how much of it the backward pass hid, and of negotiation."""
    whole = (0.0, max(s["end_s"] for s in spans))
    backward = next(s for s in spans if s["kind"] == "backward")
    during = (backward["begin_s"], backward["end_s"])
    sums = ("bucket", "allreduce")
    communication = covered(spans, sums, whole)
    hidden = covered(spans, sums, during)
    return {
        "communication_s": communication,
        "negotiation_s": covered(spans, ("negotiate",), whole),
        "hidden": hidden / communication if communication else 1.0,
        "messages": float(sum(s["kind"] in sums for s in spans)),
    }
