"""HTTP: values in front of ASGI, operator routes on FastAPI, problems, the OpenAPI document, the pages.

``api.application.create_app`` is its face. It knows the engine, nothing of Prometheus or systemd.
"""
