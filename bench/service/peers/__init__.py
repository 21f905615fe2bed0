"""The other servers, one a file, and the small services in Python that stand for the obvious way to write one."""
