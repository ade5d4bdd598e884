"""Workloads: ``run(bench)`` of each module returns what it measured."""
