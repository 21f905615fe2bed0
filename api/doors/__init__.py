"""Doors for build caches: the HTTP dialects of Bazel, ccache, Gradle and sccache in front of one namespace each.

A door has a path of its own (``/bazel/…``) and is closed unless the settings name it. It says which paths and methods
its clients use and what their keys look like; what a request then does is what it does at ``/v1/kv/``.
"""
