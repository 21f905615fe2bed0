"""A load that remembers what it was promised, and the checker that holds a restarted daemon to it."""
