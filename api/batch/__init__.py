"""Batch calls: many keys in one request, msgpack or JSON, each key with a result of its own.

``verbs`` is its face. ``body`` and ``msgpack_reader`` take requests in as they come, ``keys`` and ``entries`` say what
is in them, ``answer_stream`` and ``packing`` send answers as they are found; one module for each verb joins them.
"""
