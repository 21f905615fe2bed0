"""``/``: what the daemon is doing, for a person with a browser. Rendered on the server, without scripts."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from api.engine_face import EngineFace
from api.pages import PAGE_HEADERS, render_page

_PAGE = """\
{% extends "frame" %}
{% block title %}rawblockd: {{ status.state.value }}{% endblock %}
{% block body %}
<h1>rawblockd</h1>
<p>State: <strong>{{ status.state.value }}</strong>
{%- if status.reasons %} ({{ status.reasons | map(attribute="value") | join(", ") }}){% endif %}.</p>
{% if recovering %}
<p>Recovering: {{ progress.step }}, {{ "%.0f" | format(100 * progress.ratio) }} %.</p>
{% endif %}
{% if status.partial_recovery %}
<p role="alert"><strong>Partial recovery:</strong> {{ status.skipped_entries }} entries were skipped and checkpoints are
frozen until the loss is acknowledged. The <a href="/v1/recovery">recovery report</a> lists them.</p>
{% endif %}
<table>
<tr><th scope="row">Device</th><td>{{ status.device.path }}</td></tr>
<tr><th scope="row">Entries</th><td>{{ status.capacity.slots.live }}</td></tr>
<tr><th scope="row">Used</th><td>{{ status.capacity.used_bytes }} of {{ status.capacity.total_bytes }} bytes</td></tr>
<tr><th scope="row">Last checkpoint</th><td>{{ "%.0f" | format(status.checkpoint.age_seconds) }} s ago</td></tr>
<tr><th scope="row">Journal used</th><td>{{ "%.1f" | format(100 * status.journal.used_ratio) }} %</td></tr>
<tr><th scope="row">Up</th><td>{{ "%.0f" | format(status.uptime_seconds) }} s</td></tr>
<tr><th scope="row">Version</th><td>{{ status.version }}</td></tr>
</table>
<ul>
<li><a href="/v1/status">status</a></li>
<li><a href="/v1/recovery">recovery report</a></li>
<li><a href="/readyz?verbose">readiness</a></li>
<li><a href="/metrics">metrics</a></li>
<li><a href="/docs">documentation of the HTTP interface</a></li>
</ul>
{% endblock %}
"""


def operator_router(engine: EngineFace) -> APIRouter:
    router = APIRouter(tags=["pages"])

    @router.get("/", summary="Page for the operator", operation_id="page", response_class=HTMLResponse)
    async def page() -> HTMLResponse:
        """The state in a few lines, with links to what says more."""
        status = engine.status()
        recovering = status.state.value in ("starting", "recovering")
        body = render_page(_PAGE, status=status, recovering=recovering, progress=engine.progress)
        return HTMLResponse(body, headers=PAGE_HEADERS)

    return router
