"""The ground floor: clocks, threads, loggers, hooks. Nothing here knows a row."""
