"""Where images come from, one file per origin; each yields the same blocks to the pack writer."""
