"""Metrics for Prometheus: counters of the process, figures from the database, exposition."""
