"""Which training samples stay: reduce, cluster, filter, and how stable that is."""
