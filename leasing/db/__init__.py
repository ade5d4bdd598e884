"""Dialects, one-statement forms, notifications and connections of the database."""
