"""Figures in words."""

from __future__ import annotations


def amount(value: str, figure: float) -> str:
    """``value`` is the name of one of the figures, and tells the unit."""
    if value.endswith("microseconds"):
        return f"{figure / 1e3:.2f} ms" if figure >= 1000 else f"{figure:.0f} µs"
    if value == "bytes_per_second":
        return f"{figure / 1e9:.2f} GB/s" if figure >= 1e9 else f"{figure / 1e6:.0f} MB/s"
    if value == "bytes":
        return f"{figure / 1e6:.1f} MB"
    return f"{thousands(figure)}/s"


def thousands(figure: float) -> str:
    if figure >= 100_000:
        return f"{figure / 1e3:.0f} k"
    if figure >= 1000:
        return f"{figure / 1e3:.1f} k"
    return f"{figure:.0f}"


def ratio(figure: float) -> str:
    return f"{figure:.1f}" if figure >= 10 else f"{figure:.2f}" if figure >= 0.1 else f"{figure:.3f}"
