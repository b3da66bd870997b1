"""The public names: pinned, imported lazily, documented argument by argument, with short signatures."""

import ast
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest
from imports import imported

import paracond as pc

NAMES = [
    "Answer",
    "Binary",
    "Categorical",
    "Chain",
    "CompletionOptions",
    "Conditional",
    "Context",
    "Converged",
    "Data",
    "Distribution",
    "Engine",
    "Family",
    "ImpreciseWarning",
    "InputError",
    "JointModel",
    "Learner",
    "NonFiniteError",
    "NotMixedWarning",
    "Observed",
    "Precise",
    "Real",
    "Regeneration",
    "RoughWarning",
    "Sweeps",
    "Tours",
    "Truncated",
    "anomaly_score",
    "choose_regeneration",
    "compose",
    "datasets",
    "diagnostics",
    "edited",
    "exact",
    "guided",
    "impute",
    "initializers",
    "log_likelihood",
    "networks",
    "query",
    "sample",
    "schedules",
]
MODULES = [pc.datasets, pc.diagnostics, pc.networks]
MOST = {"Learner": 12, "query": 11}  # parameters; 12 of any other
TOUCH_ALL = "import paracond as pc\nfor name in pc.__all__: getattr(pc, name)"


def members() -> dict[str, object]:
    """Public classes and functions, those of public modules too."""
    found = {f"pc.{name}": getattr(pc, name) for name in pc.__all__ if not isinstance(getattr(pc, name), ModuleType)}
    for module in MODULES:
        own = getattr(module, "__all__", None) or [
            name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
        ]
        public = {name: getattr(module, name) for name in own if not name.startswith("_")}
        found |= {f"{module.__name__}.{name}": value for name, value in public.items() if callable(value)}
    return found | {"paracond.initializers.pca": pc.initializers.pca}


MEMBERS = members()


def parameters(value) -> list[str]:
    if inspect.isclass(value) and issubclass(value, (pc.InputError, Warning)):
        return []
    return [name for name in inspect.signature(value).parameters if name != "self"]


def test_the_names_are_these():
    assert pc.__all__ == NAMES and len(NAMES) == 41
    assert all(getattr(pc, name) is not None for name in NAMES)
    assert set(NAMES) <= set(dir(pc))
    with pytest.raises(AttributeError, match="module 'paracond' has no attribute 'Nothing'"):
        _ = pc.Nothing


def test_python_can_suggest_a_name_that_is_nearly_right():
    with pytest.raises(AttributeError) as error:
        _ = pc.learner
    assert error.value.name == "learner" and error.value.obj is pc


def test_type_checkers_see_the_names_that_are_imported():
    """The imports under TYPE_CHECKING and the table of lazy imports say the same."""
    tree = ast.parse(Path(pc.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {f"{node.module}.{alias.name}" for node in block.body for alias in node.names}
    lazy = {f"paracond.{module}.{name}" for module, names in pc._MODULES.items() for name in names}
    assert seen == lazy | {f"paracond.{module}" for module in pc._PACKAGES.values()}
    assert sorted([*pc._WHERE, *pc._PACKAGES]) == sorted(pc.__all__)


def test_importing_the_package_imports_nothing_heavy():
    assert not {"torch", "numpy", "matplotlib", "sklearn", "rich", "tyro"} & imported("import paracond")


def test_touching_every_name_imports_only_what_all_need():
    found = imported(TOUCH_ALL)
    assert "torch" in found and "paracond.training.learner" in found
    assert not {"matplotlib", "sklearn", "tyro", "pooch", "rich", "scipy", "PIL", "torchmetrics"} & found


@pytest.mark.parametrize("name", [n for n in NAMES if isinstance(getattr(pc, n), ModuleType)])
def test_modules_are_documented(name):
    assert re.match(r"\S.*?[.:]", inspect.getdoc(getattr(pc, name)), re.DOTALL)


@pytest.mark.parametrize("name", MEMBERS)
def test_docstrings_begin_with_a_sentence_and_name_every_argument(name):
    value = MEMBERS[name]
    text = inspect.getdoc(value)
    own = value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__
    assert own, f"{name} has no docstring of its own"
    first = text.split("\n\n")[0]
    assert re.search(r"\w", first) and first.rstrip().endswith((".", ".)")), f"{name} does not begin with a sentence"
    missing = [p for p in parameters(value) if not re.search(rf"^(\w+, )*{p}(, \w+)*: \S", text, re.MULTILINE)]
    assert not missing, f"{name} has no line for {', '.join(missing)}"


@pytest.mark.parametrize("name", MEMBERS)
def test_signatures_are_short(name):
    assert len(parameters(MEMBERS[name])) <= MOST.get(name.removeprefix("pc."), 12)


def test_a_learner_saves_and_resumes():
    assert callable(pc.Learner.save) and callable(pc.Learner.resume)
    assert pc.Learner.save.__doc__ and pc.Learner.resume.__doc__
