"""How the database is spoken to: dialects, one-statement forms, notifications, connections."""
