"""Studies: many training runs, where they run, and the statistics of their results."""
