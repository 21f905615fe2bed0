"""The frame of the HTML pages and the one place where they are rendered, escaped."""

from __future__ import annotations

from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined

_FRAME = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{% block title %}{% endblock %}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
th { text-align: left; padding-right: 2rem; vertical-align: top; }
td { vertical-align: top; padding-right: 1rem; }
code { font-size: 0.95em; }
</style>
</head>
<body>
{% block body %}{% endblock %}
</body>
</html>
"""

PAGE_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}

_environment = Environment(
    loader=DictLoader({"frame": _FRAME}),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render_page(source: str, **values: Any) -> str:
    """HTML of a template that extends ``frame``. Names of namespaces and paths are others' text: all is escaped."""
    return _environment.from_string(source).render(**values)
