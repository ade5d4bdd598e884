"""Contents of the task pages, before any HTTP."""
