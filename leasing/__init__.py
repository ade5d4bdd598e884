"""Time-bound leases with fencing tokens, on rows of your database.

See ``leasing.models.Lease`` for named leases, ``leasing.models.Leasable`` for your own models,
and ``leasing.exceptions`` for what can go wrong.
"""
