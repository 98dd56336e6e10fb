"""What communication costs, how far a run scales, and what to buy."""
