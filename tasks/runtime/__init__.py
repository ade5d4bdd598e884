"""The ground floor: hooks, connections, a latch. Nothing here knows a row."""
