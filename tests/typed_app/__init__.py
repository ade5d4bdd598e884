"""An app of a user who checks types strictly: it uses the public names of both packages alone.

mypy reads it with the rest (``make check``). ``mistakes.py`` has calls that it must refuse.
"""
