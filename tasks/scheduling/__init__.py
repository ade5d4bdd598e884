"""When schedules are due: rules, and what code declares."""
