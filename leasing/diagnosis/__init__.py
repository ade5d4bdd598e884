"""Why a lease is where it is: five answers."""
