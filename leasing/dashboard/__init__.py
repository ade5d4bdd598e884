"""Contents of the lease pages, before any HTTP."""
