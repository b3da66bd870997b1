"""The written part of the repository: no folder of a machine in it, documents of bounded size, short table cells."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MACHINE = re.compile(rb"/(tmp|work|root|home)/")
KILOBYTES = {"README.md": 9, "ARCHITECTURE.md": 14, "RESULTS.md": 34}
WORDS_IN_A_CELL = 16


def is_ignored(path: Path, patterns: list[str]) -> bool:
    """Whether .gitignore leaves out a file, because it is built: `name/` anywhere, `folder/name/` at that place."""
    within = path.relative_to(ROOT)
    folders = [each.as_posix() for each in within.parents]
    return any(
        any(each == pattern for each in folders) if "/" in pattern else any(fnmatch(p, pattern) for p in within.parts)
        for pattern in patterns
    )


def written() -> list[Path]:
    """Every file in which a path of the machine that wrote it could be left behind."""
    folders = [path for name in ("results", "research", "docs") for path in (ROOT / name).rglob("*")]
    files = [*folders, *ROOT.glob("models/*/README.md"), *ROOT.glob("*.md")]
    patterns = [line.strip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").split()]
    return [path for path in files if path.is_file() and not is_ignored(path, patterns)]


def machine_lines(path: Path) -> list[str]:
    lines = enumerate(path.read_bytes().splitlines(), 1)
    return [f"{path.relative_to(ROOT)}:{number}" for number, line in lines if MACHINE.search(line)]


def cells(text: str) -> list[str]:
    """The cells of all Markdown tables in a text; `\\|` does not end a cell."""
    rows = [line.strip() for line in text.splitlines() if line.lstrip().startswith("|")]
    return [cell for row in rows for cell in re.split(r"(?<!\\)\|", row.strip("|"))]


def test_no_file_names_a_folder_of_a_machine():
    files = written()
    assert len(files) > 20, "the repository has results, research notes, documents and model cards"
    assert [line for path in files if path.suffix != ".png" for line in machine_lines(path)] == []


@pytest.mark.parametrize("name", KILOBYTES)
def test_documents_are_short(name):
    assert (ROOT / name).stat().st_size <= KILOBYTES[name] * 1000


TABLES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("models/*/README.md"), *ROOT.glob("research/*.md")]


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_table_cells_are_short(path):
    found = cells(path.read_text(encoding="utf-8"))
    assert [cell for cell in found if len(cell.split()) > WORDS_IN_A_CELL] == []


def test_there_are_tables_to_check():
    with_tables = {path.name for path in TABLES if cells(path.read_text(encoding="utf-8"))}
    assert {"README.md", "RESULTS.md", "comparison.md", "chain-length.md"} <= with_tables


def test_the_checks_find_what_they_look_for(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "RESULTS.md"
    path.write_text("fine\n--out " + "/tm" + "p/run\n| a \\| b | c d |\n", encoding="utf-8")
    assert machine_lines(path) == ["RESULTS.md:2"]
    assert cells(path.read_text(encoding="utf-8")) == [" a \\| b ", " c d "]
    patterns = ["__pycache__", "docs/api", "*.egg-info"]
    assert is_ignored(tmp_path / "docs" / "api" / "x.rst", patterns)
    assert is_ignored(tmp_path / "docs" / "__pycache__" / "x.pyc", patterns)
    assert not is_ignored(tmp_path / "docs" / "api.md", patterns)
    assert not is_ignored(tmp_path / "other" / "docs" / "api" / "x.rst", patterns)
