"""Every conditional update of leases: a file for each kind of row."""
