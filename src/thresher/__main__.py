"""`python -m thresher`, the form that torchrun and srun start."""

from thresher.cli import run

if __name__ == "__main__":
    run()
