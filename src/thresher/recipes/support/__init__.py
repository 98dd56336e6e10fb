"""What several recipes share: study presets, networks and data of the papers."""
