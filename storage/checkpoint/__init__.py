"""Checkpoints: the slot table and the catalogue written into the oldest copy, without stopping requests."""
