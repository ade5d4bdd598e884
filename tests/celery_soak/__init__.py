"""Many tasks through Celery while brokers restart and workers, relays and their children are
killed: none is lost, and none accepted twice. ``make celery`` runs it."""
