"""NVIDIA MPS (multi-process service): lets trials on one GPU run concurrently.

Without it the processes take turns on the GPU: eight trials at batch size 256 take eight times as
long as one. MPS is a daemon of the current user with its own folder; no GPU setting changes.
"""

import logging
import os
import shutil
import subprocess
import tempfile

logger = logging.getLogger(__name__)
CONTROL = "nvidia-cuda-mps-control"


class Mps:
    """Run the MPS daemon; logs a warning and does nothing if it cannot be started."""

    def __init__(self) -> None:
        self.environment: dict[str, str] = {}
        """Environment variables of a process that uses the daemon."""
        self._folder: str | None = None
        if shutil.which(CONTROL) is None:
            logger.warning("%s is not installed: trials take turns on the GPU", CONTROL)
            return
        self._folder = tempfile.mkdtemp(prefix="thresher-mps-")
        variables = {
            "CUDA_MPS_PIPE_DIRECTORY": self._folder,
            "CUDA_MPS_LOG_DIRECTORY": self._folder,
        }
        started = subprocess.run(
            [CONTROL, "-d"], env={**os.environ, **variables}, capture_output=True, text=True
        )
        if started.returncode:
            logger.warning(
                "%s did not start: trials take turns on the GPU (%s)",
                CONTROL,
                started.stderr.strip(),
            )
            return
        self.environment = variables

    def close(self) -> None:
        """Stop the daemon; its client processes must have ended."""
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
