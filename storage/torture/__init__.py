"""Harm done on purpose, for the crash kit: to a closed device, and to the operations of an open one.

What may be harmed is decided here, because only the engine's own formats say which bytes are promised to somebody.
"""
