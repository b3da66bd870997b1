"""Every program of the documentation runs: the gallery, the guides and the README.

The blocks of one page run in order in one namespace. Pages that take minutes run in short: a few updates, a few sweeps.
"""

import re
import runpy
from functools import partial
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch

import paracond as pc

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
PAGES = [
    page for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))] if "```python" in page.read_text()
]
LONG = {"chain-length.md", "compose.md"}

pytestmark = [
    pytest.mark.filterwarnings("ignore::paracond.NotMixedWarning"),
    pytest.mark.filterwarnings("ignore:.*non-interactive:UserWarning"),
]


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    """A folder of its own, no window, and random numbers as a new process has them."""
    monkeypatch.chdir(tmp_path)
    backend = matplotlib.get_backend()
    matplotlib.use("Agg")
    torch.manual_seed(0)
    yield
    plt.close("all")
    matplotlib.use(backend)


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def shorten(monkeypatch) -> None:
    """Three updates, two sweeps, eight chains."""
    fit, query, consistency = pc.Learner.fit, pc.query, pc.diagnostics.consistency

    def short_fit(self, steps, *rest, **options):
        return fit(self, min(steps, 3), *rest, **options)

    def short_query(*args, **options):
        return query(*args, **{**options, "stop": pc.Sweeps(2, warmup=2)})

    monkeypatch.setattr(pc.Learner, "fit", short_fit)
    monkeypatch.setattr(pc, "query", short_query)
    monkeypatch.setattr(pc.diagnostics, "consistency", partial(consistency, chains=8, warmup=2, steps=2))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_gallery_script_ends_in_a_picture(script):
    runpy.run_path(str(script))
    assert plt.get_fignums()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_programs_of_a_page_run(page, monkeypatch, capsys):
    if page.name in LONG:
        shorten(monkeypatch)
    namespace: dict = {}
    for number, program in enumerate(blocks(page)):
        exec(compile(program, f"{page.name}, block {number + 1}", "exec"), namespace)
    accuracies = re.findall(r"accuracy ([0-9.]+)", capsys.readouterr().out)
    assert page.name in LONG or all(float(found) > 0.9 for found in accuracies)


def test_the_readme_has_one_program_of_fifteen_lines():
    (program,) = blocks(ROOT / "README.md")
    lines = [line for line in program.splitlines() if line.strip() and not line.strip().startswith("#")]
    assert len(lines) <= 15
