"""The storage engine: format, device, buffers, slot table, journal, checkpoint, recovery.

It knows nothing of HTTP, Prometheus or systemd; ``storage.engine.Engine`` is its face.
"""
