"""Process groups, launching, all-reduce algorithms and gradient compression."""
