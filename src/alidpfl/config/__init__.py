"""Settings of a run: schema and loading. Never imports torch."""
