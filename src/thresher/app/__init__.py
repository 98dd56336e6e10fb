"""The local server of the interactive page, and the page itself under `static/`."""
