"""Every program of the documentation runs: the gallery, the guides and the README.

The blocks of one page run in order in one namespace. Pages that take minutes run in short: a few updates, a few sweeps.
Programs of model cards need data that are not here. Of these, every call fits the function that it names.
"""

import ast
import dataclasses
import importlib
import inspect
import re
import runpy
import shlex
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch

import paracond as pc
from paracond.cli import main as cli

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
PAGES = [
    page for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))] if "```python" in page.read_text()
]
CARDS = [card for card in sorted(ROOT.glob("models/*/README.md")) if "```python" in card.read_text()]
LONG = {"chain-length.md", "compose.md"}

pytestmark = pytest.mark.filterwarnings("ignore:.*non-interactive:UserWarning")


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


@pytest.mark.filterwarnings("ignore::paracond.NotMixedWarning")
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_programs_of_a_page_run(page, monkeypatch, capsys):
    if page.name in LONG:
        shorten(monkeypatch)
    namespace: dict = {}
    for number, program in enumerate(blocks(page)):
        code = compile(program, f"{page.name}, block {number + 1}", "exec")
        if "import pandas" not in program or find_spec("pandas"):  # no part of the tested environment
            exec(code, namespace)
    accuracies = re.findall(r"accuracy ([0-9.]+)", capsys.readouterr().out)
    assert page.name in LONG or all(float(found) > 0.9 for found in accuracies)


def test_the_readme_has_one_program_of_fifteen_lines():
    (program,) = blocks(ROOT / "README.md")
    lines = [line for line in program.splitlines() if line.strip() and not line.strip().startswith("#")]
    assert len(lines) <= 15


SHORT = ("paracond sample models/mnist --given c=7", "paracond list", "paracond reproduce ising --quick")


@pytest.mark.parametrize("start", SHORT)
def test_a_short_command_of_the_guide_runs(start, capsys, monkeypatch):
    text = (ROOT / "docs" / "command-line.md").read_text()
    (command,) = [line for line in text.splitlines() if line.startswith(start)]
    Path("models").symlink_to(ROOT / "models")
    cli.main(shlex.split(command)[1:])
    assert capsys.readouterr().out
    if "--out" in command:
        assert Path(command.split("--out ")[1], "samples.png").exists()


# --- programs that are not run ----------------------------------------------------------------------------------


class Instance(NamedTuple):
    """What a name stands for if only its class is known."""

    kind: type


def meaning(node: ast.AST, names: dict[str, Any]) -> Any:
    """What an expression names: a module, class or function, an `Instance`, or None if that is unknown."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        return member(meaning(node.value, names), node.attr)
    if isinstance(node, ast.Call):
        return result(meaning(node.func, names))
    return None


def member(owner: Any, name: str) -> Any:
    if not isinstance(owner, Instance):
        return None if owner is None else getattr(owner, name)
    if dataclasses.is_dataclass(owner.kind) and name in {field.name for field in dataclasses.fields(owner.kind)}:
        return None
    found = getattr(owner.kind, name)
    return partial(found, None) if inspect.isfunction(found) else found


def result(function: Callable | None) -> Any:
    if function is None:
        return None
    plain = function.func if isinstance(function, partial) else function
    kind = plain if inspect.isclass(plain) else get_type_hints(plain).get("return")
    return Instance(kind) if inspect.isclass(kind) and kind.__module__.startswith("paracond.") else None


def check_calls(program: str) -> int:
    """Check that every call of an imported function binds to its signature. Returns the number of these calls."""
    names: dict[str, Any] = {}
    checked = 0
    for statement in ast.parse(program).body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            exec(compile(ast.Module([statement], []), "card", "exec"), names)
            continue
        for call in (node for node in ast.walk(statement) if isinstance(node, ast.Call)):
            function = meaning(call.func, names)
            if function is not None:
                keywords = {each.arg: None for each in call.keywords if each.arg}
                inspect.signature(function).bind(*[None] * len(call.args), **keywords)
                checked += 1
        for attribute in (node for node in ast.walk(statement) if isinstance(node, ast.Attribute)):
            meaning(attribute, names)
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            names[statement.targets[0].id] = meaning(statement.value, names)
    return checked


@pytest.mark.parametrize("card", CARDS, ids=lambda path: path.parent.name)
def test_the_calls_of_a_card_fit_their_functions(card):
    assert check_calls("\n".join(blocks(card))) >= 5


@pytest.mark.parametrize(
    "line, error",
    [
        ("pc.Sweeps(5, warm=2)", TypeError),
        ("pc.Swoops(5)", AttributeError),
        ("a = pc.JointModel.load('m')\na.save()", TypeError),
        ("a = pc.query(1)\nprint(a.probability)", AttributeError),
    ],
)
def test_a_wrong_call_is_found(line, error):
    with pytest.raises(error):
        check_calls(f"import paracond as pc\n{line}")


def test_what_the_pages_leave_out_exists():
    """A name that is no longer there would stay in the list, and its successor on the page."""
    tree = ast.parse((ROOT / "docs" / "conf.py").read_text())
    found = next(n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "INTERNAL")
    modules = {"Trainer": "paracond.training.trainer", "Stepwise": "paracond.training.stepwise"}
    for owner, names in ast.literal_eval(found).items():
        if owner.startswith("paracond"):
            place = importlib.import_module(owner)
        else:
            place = getattr(importlib.import_module(modules[owner]) if owner in modules else pc, owner)
        assert [name for name in names if not hasattr(place, name)] == []
