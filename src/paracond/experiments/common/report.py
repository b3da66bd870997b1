"""The report of an experiment: one report.html with text, tables and embedded figures."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from paracond.experiments.common.results import COLUMNS, Outcome

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5rem; }
table { border-collapse: collapse; margin: 1rem 0; } td, th { padding: .3rem .8rem; text-align: left; }
th { border-bottom: 2px solid #444; } td { border-bottom: 1px solid #ddd; }
.no { color: #b00020; font-weight: bold; } .yes { color: #1a7f37; }
figure { margin: 1rem 0; } figure img { max-width: 100%; } figcaption, .small { color: #555; font-size: .9rem; }
code { background: #f3f3f3; padding: .1rem .3rem; }
"""


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
    return buffer.getvalue()


class Report:
    """Collects sections and writes one file."""

    def __init__(self, title: str, lead: str):
        self.title = title
        self.parts = [f"<h1>{html.escape(title)}</h1>", f"<p>{html.escape(lead)}</p>"]

    def section(self, heading: str, text: str = "") -> None:
        self.parts.append(f"<h2>{html.escape(heading)}</h2>")
        if text:
            self.text(text)

    def text(self, text: str) -> None:
        self.parts.append(f"<p>{html.escape(text)}</p>")

    def figure(self, figure: Figure | bytes, caption: str) -> None:
        data = base64.b64encode(figure if isinstance(figure, bytes) else png(figure)).decode()
        text = html.escape(caption)
        self.parts.append(
            f'<figure><img alt="{text}" src="data:image/png;base64,{data}"><figcaption>{text}</figcaption></figure>'
        )

    def table(self, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Cells are text."""
        self._table(head, [[html.escape(cell) for cell in row] for row in rows])

    def _table(self, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        lines = ["".join(f"<th>{html.escape(name)}</th>" for name in head)]
        lines += ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
        self.parts.append("<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>")

    def outcome(self, outcome: Outcome) -> None:
        """The table of metrics, and a line with their origin."""
        rows = []
        for metric in outcome.metrics:
            name, *values, reached, about = (html.escape(cell) for cell in (*metric.cells(), metric.about))
            rows.append([f"<code>{name}</code>", *values, f'<span class="{reached}">{reached}</span>', about])
        self._table((*COLUMNS, "meaning"), rows)
        record = outcome.record()
        origin = [record["command"], f"commit {record['commit']}", record["hardware"], f"torch {record['torch']}"]
        line = html.escape(" · ".join([*origin, f"{outcome.seconds:.0f} s"]))
        self.parts.append(f'<p class="small">{line}</p>')

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "report.html"
        body = "\n".join(self.parts)
        path.write_text(
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(self.title)}</title>'
            f"<style>{STYLE}</style></head><body>\n{body}\n</body></html>\n"
        )
        return path


def page(title: str, about: str, outcome: Outcome, figures: Iterable[tuple[str, str, Figure | bytes]]) -> Report:
    """A report with the results first, then sections, each with heading, caption and picture (empty for text alone)."""
    report = Report(title, about)
    report.section("Results")
    report.outcome(outcome)
    for heading, caption, figure in figures:
        report.section(heading, "" if figure else caption)
        if figure:
            report.figure(figure, caption)
    return report
