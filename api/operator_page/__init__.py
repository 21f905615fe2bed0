"""The operator page at ``/``: what the daemon is doing and what it needs, for a person with a browser.

Rendered on the server and whole without scripts. Where scripts run, the page renews itself in place and the charts
answer to the pointer.
"""
