"""The load generator, in C, and what runs it."""
