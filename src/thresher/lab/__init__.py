"""Experiments on scaling: the network test bed, engine and rule comparisons, published records."""
