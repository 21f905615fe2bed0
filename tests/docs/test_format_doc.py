"""``docs/format.md`` says what the code does: byte tables, enums, catalogue records, constants."""

from __future__ import annotations

import re

from tests.docs.format_tables import PAGE, catalogue_kinds, filled, layouts, marked, tables

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_code() -> None:
    assert filled(TEXT) == TEXT, "run: python -m tests.docs.format_tables"


def test_every_table_has_its_place_once() -> None:
    assert sorted(marked(TEXT)) == sorted(tables())


def test_every_structure_is_described() -> None:
    assert len(layouts()) >= 9
    for name, layout in layouts().items():
        assert name in marked(TEXT)
        for field in layout.fields:
            assert f"| `{field.name}` |" in TEXT


def test_every_catalogue_record_is_described() -> None:
    assert [kind.kind for kind in catalogue_kinds()] == list(range(1, len(catalogue_kinds()) + 1))
    for kind in catalogue_kinds():
        assert kind.__doc__, "its meaning is its docstring"


def test_the_page_names_no_file_that_is_not_there() -> None:
    for name in re.findall(r"`((?:storage|docs|tests)/[\w/.-]+)`", TEXT):
        assert (PAGE.parents[1] / name).exists(), name
