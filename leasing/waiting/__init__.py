"""Waiting until a lease is released: polls, woken by notifications."""
