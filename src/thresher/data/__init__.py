"""Images in packs: where they come from, how they are split, ordered, augmented and loaded."""
