"""NVIDIA's multi-process service: lets several small trials use one GPU at the same time.

Without it the processes take turns on the GPU, and eight trials at batch 256 take eight times as
long as one. It is a daemon of the user's, with a folder of its own; no setting of the card changes.
"""

import os
import shutil
import subprocess
import tempfile

from thresher.progress import say

CONTROL = "nvidia-cuda-mps-control"


class Mps:
    """The service while a study runs; does nothing where it cannot be started."""

    def __init__(self) -> None:
        self.environment: dict[str, str] = {}
        """What a process needs to be served."""
        self._folder: str | None = None
        if shutil.which(CONTROL) is None:
            say(f"{CONTROL} is not installed: trials take turns on the GPU")
            return
        self._folder = tempfile.mkdtemp(prefix="thresher-mps-")
        served = {
            "CUDA_MPS_PIPE_DIRECTORY": self._folder,
            "CUDA_MPS_LOG_DIRECTORY": self._folder,
        }
        started = subprocess.run(
            [CONTROL, "-d"], env={**os.environ, **served}, capture_output=True, text=True
        )
        if started.returncode:
            say(f"{CONTROL} did not start: trials take turns on the GPU ({started.stderr.strip()})")
            return
        self.environment = served

    def close(self) -> None:
        """Stop the service; its clients have ended before."""
        if self.environment:
            subprocess.run(
                [CONTROL],
                input="quit\n",
                env={**os.environ, **self.environment},
                capture_output=True,
                text=True,
                timeout=30,
            )
            self.environment = {}
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
