"""One file per way to choose; all keep the contract of `base.py`."""
