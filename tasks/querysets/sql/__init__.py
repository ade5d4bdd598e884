"""PostgreSQL's one-statement forms, and what they are made of."""
