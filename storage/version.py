"""The version of the program, for status, metrics and the command line."""

VERSION = "0.1.0"
