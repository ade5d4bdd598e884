"""Names, durations and JSON from outside, checked before use."""
