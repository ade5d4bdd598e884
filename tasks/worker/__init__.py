"""The worker process: claiming, executors, hand-back, shutdown."""
