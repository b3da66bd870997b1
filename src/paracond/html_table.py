"""A small HTML table, by which notebooks show our objects. It has the colours of its page, and loads nothing."""

from collections.abc import Iterable, Sequence
from html import escape

MOST_ROWS = 30
CELL = "text-align: left; vertical-align: top; padding: 0.2em 1em 0.2em 0; color: inherit; background: none"
LINE = "border: 0; border-bottom: 1px solid currentColor"
TABLE = "border-collapse: collapse; margin: 0.3em 0; color: inherit; background: none"


def html_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Write a table. All texts are escaped: names of groups may be anything.

    title: a sentence over the table.
    columns: their headings. Columns without any value are left out.
    rows: the values of each row, of which the first is its heading. Beyond `MOST_ROWS` they are counted only.
    """
    listed = [[str(value) for value in row] for row in rows]
    shown = [place for place in range(len(columns)) if any(row[place] for row in listed)]
    head = "".join(_cell("th", LINE, columns[place]) for place in shown)
    body = "".join(f"<tr>{''.join(_value(place, row[place]) for place in shown)}</tr>" for row in listed[:MOST_ROWS])
    more = f"<div>and {len(listed) - MOST_ROWS:,} more</div>" if len(listed) > MOST_ROWS else ""
    table = f'<table style="{TABLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f"<div><strong>{escape(title)}</strong>{table}{more}</div>"


def _value(place: int, text: str) -> str:
    return _cell("td" if place else "th", "border: 0", text)


def _cell(tag: str, style: str, text: str) -> str:
    return f'<{tag} style="{CELL}; {style}">{escape(text)}</{tag}>'
