"""The process: command line, settings, start and stop, signals, systemd, logging."""
