"""The frame of the HTML pages and the one place where they are rendered, escaped.

No page holds a script or a style of its own: the policy lets a browser run only the files that the daemon serves, so
nothing that somebody stored under a key or a name can act as part of a page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from api.operator_page import quantities
from api.operator_page.static_files import static_url

TEMPLATES = Path(__file__).parent / "operator_page" / "templates"

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)

PAGE_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
}


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals["static_url"] = static_url
    environment.globals["plural"] = quantities.plural_text
    environment.filters |= {
        "age": quantities.age_text,
        "clock": quantities.clock_text,
        "count": quantities.count_text,
        "duration": quantities.duration_text,
        "latency": quantities.latency_text,
        "rate": quantities.rate_text,
        "share": quantities.share_text,
        "size": quantities.size_text,
        "stamp": quantities.stamp_text,
    }
    return environment


_ENVIRONMENT = _environment()


def page_response(template: str, status_code: int = 200, **values: Any) -> HTMLResponse:
    """The page of a template. Names of namespaces, paths and keys are others' text: all is escaped."""
    return HTMLResponse(_ENVIRONMENT.get_template(template).render(**values), status_code, PAGE_HEADERS)
