"""Prometheus: one collector over one picture of the engine per scrape; alert rules and dashboard beside it."""
