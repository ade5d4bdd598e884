"""An app of the tests, as a user would write it: rows of its own that can be leased."""
