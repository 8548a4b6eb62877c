"""Programs that made the learned filters and the results outside the grids. Run them from the clone's root."""
