"""Time lines of one measured step: Horovod's timeline file, and summaries of any time line.

Times are seconds from the beginning of the step on rank 0; see `pipeline.Span` for the kinds.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from thresher.errors import InvalidValueError
from thresher.scaling.pipeline import Span

Interval = tuple[float, float]
"""(begin, end) in seconds."""
REDUCES = ("bucket", "allreduce")


def horovod_events(path: Path) -> dict[str, dict[str, list[Interval]]]:
    """Return tensor → activity → intervals in seconds since the epoch, of Horovod's timeline file.

    The file is Chrome's trace format with tensors as processes; nested activities are closed by an
    unnamed E event, so a stack per tensor tells which one ends. A killed run leaves the list open.
    """
    text = path.read_text().rstrip()
    try:
        events = json.loads(text if text.endswith("]") else text.rstrip(",") + "]")
    except json.JSONDecodeError:
        raise InvalidValueError(f"{path} is not a timeline of Horovod") from None
    epoch, names = 0.0, {}
    open_activities: dict[int, list[tuple[str, float]]] = {}
    intervals: dict[str, dict[str, list[Interval]]] = {}
    for event in events:
        pid, arguments = event.get("pid"), event.get("args", {})
        if event["ph"] == "M":
            if "start_time_since_epoch_in_micros" in arguments:
                epoch = arguments["start_time_since_epoch_in_micros"] * 1e-6
            elif "name" in arguments:
                names[pid] = arguments["name"]
        elif event["ph"] == "B":
            open_activities.setdefault(pid, []).append((event["name"], event["ts"]))
        elif event["ph"] == "E" and open_activities.get(pid):
            activity, begin = open_activities[pid].pop()
            interval = (epoch + begin * 1e-6, epoch + event["ts"] * 1e-6)
            tensor = intervals.setdefault(names.get(pid, str(pid)), {})
            tensor.setdefault(activity, []).append(interval)
    return intervals


def horovod_spans(
    path: Path, ready: dict[str, float], sizes: dict[str, int], begin: float
) -> list[Span]:
    """Return the spans of one step from Horovod's timeline file.

    `ready` says when each gradient was computed and `begin` when the step began, in seconds since
    the epoch; `sizes` are the bytes of each gradient.
    """
    events = horovod_events(path)
    spans = []
    for name, time_s in ready.items():
        activities = events.get(f"allreduce.gradient.{name}", {})
        negotiation = _first_after(activities.get("NEGOTIATE_ALLREDUCE", []), time_s)
        reduction = _first_after(activities.get("GLOO_ALLREDUCE", []), time_s)
        if negotiation is not None:
            end = negotiation[1] - begin
            spans.append(Span("negotiate", time_s - begin, end, sizes[name], name))
        if reduction is not None:
            times = (reduction[0] - begin, reduction[1] - begin)
            spans.append(Span("allreduce", *times, sizes[name], name))
    return spans


def _first_after(intervals: list[Interval], time_s: float) -> Interval | None:
    # Horovod's clock and ours differ by some microseconds.
    return next((pair for pair in intervals if pair[1] >= time_s - 1e-4), None)


def covered(spans: Sequence[Span], kinds: tuple[str, ...], window: Interval) -> float:
    """Return the seconds of `window` in which at least one span of `kinds` is active."""
    clipped = sorted(
        (max(s.begin_s, window[0]), min(s.end_s, window[1])) for s in spans if s.kind in kinds
    )
    total, reached = 0.0, window[0]
    for begin, end in clipped:
        begin = max(begin, reached)
        if end > begin:
            total += end - begin
            reached = end
    return total


@dataclass(frozen=True)
class CommunicationSummary:
    """Communication of one step."""

    communication_s: float
    negotiation_s: float
    hidden: float
    """Share of the communication during the backward pass."""


def summarize(spans: Sequence[Span]) -> CommunicationSummary:
    whole = (0.0, max(s.end_s for s in spans))
    backward = next(s for s in spans if s.kind == "backward")
    communication = covered(spans, REDUCES, whole)
    hidden = covered(spans, REDUCES, (backward.begin_s, backward.end_s))
    return CommunicationSummary(
        communication_s=communication,
        negotiation_s=covered(spans, ("negotiate",), whole),
        hidden=hidden / communication if communication else 1.0,
    )
