"""PostgreSQL's one-statement forms of acquire, claim, renew and release, for rows of any model.

Each locks its rows (passing over those that someone else has locked), judges, writes, notes the
events, and answers: one round trip where the portable form takes six. The conditions and the
columns are the portable form's own, compiled by Django, so there is one definition of each. A
statement that finds nothing to do has changed nothing, and the portable form then says why.
"""

from leasing.db.postgres.granting import claim, grant, grant_all
from leasing.db.postgres.holding import release, renew, renew_one
from leasing.db.postgres.rows import Spelled, alias_of, notes, resource_of, serves, suits

__all__ = [
    "Spelled",
    "alias_of",
    "claim",
    "grant",
    "grant_all",
    "notes",
    "release",
    "renew",
    "renew_one",
    "resource_of",
    "serves",
    "suits",
]
