"""A small HTML table, by which notebooks show our objects. It has the colours of its page, and loads nothing."""

from collections.abc import Iterable, Sequence
from html import escape

MOST_ROWS = 30
CELL = "text-align:left;padding:.2em 1em .2em 0"
LINE = ";border-bottom:1px solid"  # in the colour of the text


def html_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Write a table. All texts are escaped: names of groups may be anything.

    title: a sentence over the table.
    columns: their headings. Columns without any value are left out.
    rows: the values of each row, of which the first is its heading. Beyond `MOST_ROWS` they are counted only.
    """
    listed = [[str(value) for value in row] for row in rows]
    shown = [place for place in range(len(columns)) if any(row[place] for row in listed)]
    head = "".join(_cell("th", columns[place], LINE) for place in shown)
    body = "".join(f"<tr>{''.join(_value(place, row[place]) for place in shown)}</tr>" for row in listed[:MOST_ROWS])
    more = f"<div>and {len(listed) - MOST_ROWS:,} more</div>" if len(listed) > MOST_ROWS else ""
    table = f'<table style="border-collapse:collapse"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f"<div><strong>{escape(title)}</strong>{table}{more}</div>"


def _value(place: int, text: str) -> str:
    return _cell("td" if place else "th", text)


def _cell(tag: str, text: str, style: str = "") -> str:
    return f'<{tag} style="{CELL}{style}">{escape(text)}</{tag}>'
