"""One attempt: from the claim to its stored outcome."""
