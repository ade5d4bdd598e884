"""Metrics of tasks: counters of the process, figures from the database."""
