"""The table of terms in the documentation is what signatures and docstrings say."""

import os

from support.terms_table import BEGIN, DOCUMENT, END, make_table


def test_the_table_of_terms_is_up_to_date() -> None:
    """With WRITE_TERM_TABLE=1, the table is written first."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    table = make_table()
    if os.environ.get("WRITE_TERM_TABLE") == "1":
        DOCUMENT.write_text(before + BEGIN + table + END + after)
        old = table
    assert old == table, "docs/terms.md: run this test with WRITE_TERM_TABLE=1"
