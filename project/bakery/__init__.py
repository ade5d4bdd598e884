"""The application of the demo: a bakery that leases names, guards rows and enqueues tasks."""
