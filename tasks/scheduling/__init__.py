"""Rules of when schedules are due, and what code declares."""
