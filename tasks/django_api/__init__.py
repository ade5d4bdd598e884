"""Django's own task API: ``tasks.backend`` is what settings name."""
