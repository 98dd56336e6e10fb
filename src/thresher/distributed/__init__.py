"""Ranks, launching, all-reduce and compression: the ground beside paths, errors, progress."""
