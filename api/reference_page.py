"""``/docs``: the HTTP interface for people, made from the OpenAPI document; ``/openapi.json`` is the same for programs.

It needs no script and nothing from elsewhere: the daemon's machines often see no other network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from api.pages import PAGE_HEADERS, render_page
from api.problems import HTTP_CODES
from storage.errors import RawblockdError, RequestRefused, Unavailable

_PAGE = """\
{% extends "frame" %}
{% block title %}rawblockd: HTTP interface{% endblock %}
{% block body %}
<h1>{{ document.info.title }} {{ document.info.version }}</h1>
<p>{{ document.info.description }}</p>
<p><a href="/openapi.json">OpenAPI document</a> · <a href="/">state of the daemon</a></p>
{% for path, item in document.paths.items() %}
<h2 id="{{ path }}"><code>{{ path }}</code></h2>
{% for method, operation in item.items() if method != "parameters" %}
<h3><code>{{ method | upper }}</code> {{ operation.summary }}</h3>
<p>{{ operation.description }}</p>
{% set parameters = item.get("parameters", []) + operation.get("parameters", []) %}
{% set more = operation.get("x-more-headers", {}) %}
{% if parameters or more %}
<table>
{% for parameter in parameters %}
<tr><td><code>{{ parameter.name }}</code></td><td>{{ parameter.in }}{{ ", required" if parameter.required }}</td>
<td>{{ parameter.description }}</td></tr>
{% endfor %}
{% for name, description in more.items() %}
<tr><td><code>{{ name }}</code></td><td>header</td><td>{{ description }}</td></tr>
{% endfor %}
</table>
{% endif %}
<table>
{% for status, answer in operation.responses.items() %}
<tr><td><code>{{ status }}</code></td><td>{{ answer.description }}</td>
<td>{{ answer.get("content", {}) | join(", ") }}</td><td>{{ answer.get("headers", {}) | join(", ") }}</td></tr>
{% endfor %}
</table>
{% endfor %}
{% endfor %}
<h2 id="problems">Problems</h2>
<p>Every error is <code>application/problem+json</code> with <code>type</code>, <code>title</code>, <code>status</code>,
<code>detail</code> and <code>code</code>.</p>
<table>
{% for code, status, title in problems %}
<tr id="problem-{{ code }}"><td><code>{{ code }}</code></td><td>{{ status }}</td><td>{{ title }}</td></tr>
{% endfor %}
</table>
{% endblock %}
"""


def reference_router(document: Callable[[], dict[str, Any]]) -> APIRouter:
    """The page of the document that ``document`` returns."""
    router = APIRouter(tags=["pages"])

    @router.get("/docs", summary="This page", operation_id="docs", response_class=HTMLResponse)
    async def docs() -> HTMLResponse:
        """All routes with their parameters and answers, and all problems."""
        body = render_page(_PAGE, document=document(), problems=sorted(set(_problems())))
        return HTMLResponse(body, headers=PAGE_HEADERS)

    return router


def _problems() -> Iterator[tuple[str, int, str]]:
    for status, (code, title) in HTTP_CODES.items():
        yield code, status, title
    yield "not_ready", 503, "The store does not accept reads and writes now."
    waiting: list[type[RawblockdError]] = [RequestRefused, Unavailable]
    while waiting:
        error = waiting.pop()
        yield error.code, error.http_status, error.sentence
        waiting.extend(error.__subclasses__())
