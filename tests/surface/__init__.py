"""The list of what users see of both packages: ``surface.txt``, one line a thing, sorted.

``make surface`` writes the list anew, and ``tests/test_surface.py`` compares it. A change of a
page, a command, a log line, a metric or a signal shows as lines that come and go.
"""
