"""One training run, at any batch size on any number of workers, along the same path."""
