"""Stores of grants: rows, rows over a separate connection, memory."""
