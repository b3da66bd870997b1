"""A Sphinx extension: docstrings are Markdown.

autodoc takes docstrings for reStructuredText. Ours have Markdown tables, indented equations and single backticks. So
the first paragraph, which autosummary shows in tables, is translated, and MyST parses the rest. Lines `name: text` that
document an argument become a list.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Sequence

from docutils import nodes
from docutils.utils import new_document
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.util.docutils import SphinxDirective

SECTIONS = (
    "args",
    "arguments",
    "main arguments",
    "other arguments",
    "parameters",
    "returns",
    "raises",
    "attributes",
)
ARGUMENT = re.compile(r"^\s*(?:[-*] )?[`*]{0,2}(\w+)[`*]{0,2}(?:: | -- | - )(.*)$")
HEADING = re.compile(rf"^\s*({'|'.join(SECTIONS)}):\s*$", re.IGNORECASE)


class Markdown(SphinxDirective):
    """`.. markdown::` parses its content as Markdown."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        document = new_document(
            self.env.doc2path(self.env.docname), self.state.document.settings
        )
        MystParser().parse("\n".join(self.content), document)
        return [
            node
            for node in document.children
            if not isinstance(node, nodes.system_message)
        ]


def parameters(obj: object) -> set[str]:
    """The names of the arguments of a function or class."""
    try:
        return set(inspect.signature(obj).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return set()


def as_markdown(lines: Sequence[str], names: Collection[str]) -> list[str]:
    """A docstring's lines as Markdown: arguments as a list, their headings bold, doctests fenced."""
    text: list[str] = []
    listed = fenced = False  # whether an argument, or a doctest, goes on
    for line in lines:
        found, heading = ARGUMENT.match(line), HEADING.match(line)
        if line.lstrip().startswith(">>>") and not fenced:
            text += ["", "```pycon"]
            fenced = True
        if fenced and not line.strip():
            text += ["```"]
            fenced = False
        if heading and not fenced:
            text += ["", f"**{heading[1]}**", ""]
        elif found and found[1] in names and not fenced:
            text += ["" if not listed else None, f"- `{found[1]}`: {found[2]}"]
            listed = True
            continue
        elif listed and line.strip():
            text += [f"  {line.strip()}"]
            continue
        else:
            text += [line.strip() if fenced else line]
        listed = listed and not line.strip()
    if fenced:
        text += ["```"]
    return [line for line in text if line is not None]


def as_rst(paragraph: str) -> str:
    """A paragraph of Markdown with nothing but code in backticks, as reStructuredText."""
    parts = paragraph.split("`")
    if len(parts) % 2 == 0:  # a backtick without its partner
        return re.sub(r"([\\*_|`<>])", r"\\\1", paragraph)
    plain = [re.sub(r"([\\*_|<>])", r"\\\1", part) for part in parts[::2]]
    code = [f"\\ ``{part}``\\ " for part in parts[1::2]]
    return "".join(x for pair in zip(plain, [*code, ""], strict=True) for x in pair)


def _process(app, what, name, obj, options, lines: list[str]) -> None:
    content = "\n".join(as_markdown(lines, parameters(obj))).strip("\n").split("\n")
    end = content.index("") if "" in content else len(content)
    lines[:] = [*as_rst("\n".join(content[:end])).split("\n"), ""]
    if any(content[end:]):
        lines += [".. markdown::", "", *(f"   {line}" for line in content[end:]), ""]


def setup(app) -> dict[str, bool]:
    app.add_directive("markdown", Markdown)
    app.connect("autodoc-process-docstring", _process, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
