"""Rows that can be leased, with keys of every kind. No app: its tables are made by ``made_in``."""
