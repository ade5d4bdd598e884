"""Five answers to why a lease is where it is."""
