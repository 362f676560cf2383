"""The costs of envspec beside those of its peers, measured in one run: `uv run python -m benchmarks`. See README.md here."""
