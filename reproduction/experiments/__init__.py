"""Programs that made the committed results outside the grids, and the learned filters. Run them from the clone's root."""
