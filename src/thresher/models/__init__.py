"""Networks by name, their batch norm, and their penultimate features."""
