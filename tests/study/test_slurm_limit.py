"""A study on a real SLURM that takes only some jobs at a time, as limits of accounting do."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm_bed import SlurmBed, missing

from thresher.paths import write_text
from thresher.study.study import Study
from thresher.study.toml import dumps

pytest.importorskip("submitit")
pytestmark = pytest.mark.xdist_group("slurm")
# Accounting takes a database. This plugin of the controller refuses jobs with the same error; the
# file `free` says how many it takes.
LUA = """
local file = "{free}"
function slurm_job_submit(job)
  local free = tonumber(io.open(file):read("*a"))
  local last = string.match(job.array_inx or "", "^0%-(%d+)")
  local jobs = tonumber(last or 0) + 1
  if jobs > free then
    slurm.log_user("QOSMaxSubmitJobPerUserLimit")
    return slurm.ESLURM_ACCOUNTING_POLICY
  end
  local rest = io.open(file, "w")
  rest:write(tostring(free - jobs))
  rest:close()
  return slurm.SUCCESS
end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""
RUN = str(Path(__file__).with_name("run_study.py"))
TRIAL = """
import json, sys
json.dump({"score": 1.0 + int(sys.argv[2])}, open(sys.argv[1] + "/result.json", "w"))
"""


@pytest.mark.slow  # waits for SLURM
def test_a_study_goes_on_when_slurm_takes_jobs_again(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if why := missing():
        pytest.skip(why)
    root = tmp_path_factory.mktemp("slurm")
    free = tmp_path / "free"
    free.write_text("1")
    (root / "job_submit.lua").write_text(LUA.replace("{free}", str(free)))
    with SlurmBed(root, "JobSubmitPlugins=lua\n") as bed:
        _run_at_the_limit(bed, tmp_path, free)


def _run_at_the_limit(bed: SlurmBed, tmp_path: Path, free: Path) -> None:
    (tmp_path / "own.py").write_text(TRIAL)
    command = f"{{python}} -S {tmp_path}/own.py {{out}} {{seed}}"
    content = {
        "seeds": 4,
        "base": {"command": command},
        "metric": "score",
        "executor": {"kind": "slurm", "minutes": 5, "poll_seconds": 0.5},
    }
    file, out, log = tmp_path / "study.toml", tmp_path / "out", tmp_path / "log"
    write_text(file, dumps(content))
    with open(log, "wb") as errors:
        process = subprocess.Popen(
            [sys.executable, RUN, str(file), str(out), "WARNING"],
            env={**os.environ, **bed.environment},
            stderr=errors,
        )
    try:
        # Arrays of two are refused as a whole, and one job of the first is taken.
        _until(lambda: len(list(out.glob("trials/*/result.json"))) == 1, process)
        assert "SLURM takes no more jobs for now (QOSMaxSubmitJobPerUserLimit)" in log.read_text()
        free.write_text("3")
        assert process.wait(120) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
    assert free.read_text() == "0"
    assert Study.load(file, out).status().complete
    assert log.read_text().count("QOSMaxSubmitJobPerUserLimit") == 1, log.read_text()


def _until(seen: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    limit = time.monotonic() + 120
    while not seen():
        assert time.monotonic() < limit
        assert process.poll() is None
        time.sleep(0.1)
