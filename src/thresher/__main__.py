"""`python -m thresher`, the form that torchrun and srun start."""

from thresher.cli import main

if __name__ == "__main__":
    main()
