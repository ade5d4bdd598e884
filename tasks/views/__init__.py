"""Pages of tasks, queues, schedules, workers and the generator."""
