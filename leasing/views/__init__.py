"""Pages of leases and of the audit ledger."""
