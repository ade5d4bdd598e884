"""Mutants: each condition of a verb is bent in turn, and a test must notice.

``making`` bends, ``server`` tries mutants on one database, ``explained`` says which cannot be told
from the original, and ``__main__`` deals them out and prints the table of mutant and killer.
"""
