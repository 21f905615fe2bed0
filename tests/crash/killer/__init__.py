"""A daemon that kills itself at a named point, and the checker that holds a restarted one to its promises."""
