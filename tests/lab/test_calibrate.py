"""The test bed of hosts: needs root and network namespaces."""

import pytest
from benchmarks.calibrate import (
    CalibrationCase,
    calibrate,
    host_profile,
    measure_links,
    measure_profile,
    measure_step,
)

from thresher.errors import ThresherError
from thresher.lab.shares import host_shares
from thresher.lab.testbed import Testbed, unavailable
from thresher.scaling.profile import BatchTimes, Layer

ALONE = host_profile(
    CalibrationCase("tiny", 8),
    (Layer("fc", "Linear", 1_000_000, 2e6, 4e3, {8: 0.01}, {8: 0.02}),),
    BatchTimes(8, 0.01, 0.02, 0.001, 0.031, 0.0),
)
POINTS = [(float(n), 2 * 1e-4 + n * 1e-8) for n in (1e3, 1e5, 1e7)]


def test_two_hosts_are_what_they_were_measured_to_be() -> None:
    predictor = calibrate(ALONE, POINTS, two_s=0.14)
    assert predictor.seconds(1) == pytest.approx(0.031)
    assert predictor.seconds(2) == pytest.approx(0.14)
    # The one bucket comes last: two hosts pay 40.2 ms for it, stall twice for two periods of 10 ms
    # at most, and drag for the rest. Four hosts take three times the steps, 1.5 times the bytes.
    assert predictor.stall_s == pytest.approx(0.02)
    assert predictor.drag_s == pytest.approx(0.14 - 0.031 - 0.0402 - 0.04)
    assert predictor.seconds(4) == pytest.approx(0.031 + 0.0606 + 6 * 0.02 + 1.5 * predictor.drag_s)
    free = calibrate(ALONE, POINTS, two_s=0.14, limited=False)
    assert free.stall_s == 0
    assert calibrate(ALONE, POINTS, two_s=0.05).stall_s == 0


@pytest.mark.alone
@pytest.mark.slow  # nine processes, each held to 0.4 of a core
def test_four_hosts_are_predicted_from_one_and_two() -> None:
    """A small form of benchmarks/predict_check.py, with room for the noise of a busy machine."""
    reason = unavailable()
    if reason is not None:
        pytest.skip(reason)
    case = CalibrationCase("alexnet-small", 4, image_size=16, seconds=0.3)
    for attempt in range(3):
        try:
            predicted, measured = _four_hosts(case)
        except ThresherError:  # a rank that got no processor in time
            if attempt == 2:
                raise
            continue
        if predicted == pytest.approx(measured, rel=0.3):
            return
    pytest.fail(f"predicted {predicted:.3f} s, measured {measured:.3f} s, the third time")


def _four_hosts(case: CalibrationCase) -> tuple[float, float]:
    """Seconds of a step on four hosts: predicted from one and two, and measured."""
    with host_shares(4, 0.4) as shares, Testbed(4, "500mbit") as bed:
        alone = measure_profile(bed, case, shares)
        points = measure_links(bed, case, shares)
        two = measure_step(bed, case, 2, shares)
        four = measure_step(bed, case, 4, shares)
    predictor = calibrate(alone, points, two.step_s, limited=shares is not None)
    return predictor.seconds(4), four.step_s
