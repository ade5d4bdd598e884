"""What can keep a grant: rows, rows over a separate connection, memory."""
