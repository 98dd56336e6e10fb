"""Audit a data set: copies, leaks, label errors, outliers and broken images, with one network."""
