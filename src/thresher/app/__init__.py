"""The review page: its local server, its static export and the built page under `static/`."""
