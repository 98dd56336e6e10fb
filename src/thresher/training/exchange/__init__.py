"""Gradient exchange between workers: one strategy per file."""
