"""Filters: which training samples to keep. One file each; `registry` finds them by name."""
