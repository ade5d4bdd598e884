"""Services that run in every worker: recovery, scheduler, housekeeping, sampling."""
