"""An app of the tests: handlers that do as a test says, in whatever process runs them."""
