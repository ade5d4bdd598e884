"""A command that lives as long as its term: ``manage.py run_as_leader``."""
