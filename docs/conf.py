"""Configuration of the documentation site. `make docs` builds it to build/docs, with warnings as errors."""

from __future__ import annotations

import inspect
import pkgutil
import sys
from importlib import import_module
from importlib.metadata import version as installed_version
from pathlib import Path

import torch

import paracond
from paracond.runtime import progress

DOCS = Path(__file__).parent
sys.path.insert(
    0, str(DOCS)
)  # for the extensions `docstrings` and `mathml`, which live here

project = "paracond"
author = "the paracond authors"
version = release = installed_version("paracond")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "docstrings",
    "mathml",
]
templates_path = ["_templates"]
exclude_patterns = [
    "gallery/README.txt",
    "gallery/*.ipynb",
    "gallery/*.py",
    "gallery/*.py.md5",
]

# --- pages in Markdown --------------------------------------------------------------------------------------------

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # tests/test_documentation.py runs the programs of the pages

# --- the API reference --------------------------------------------------------------------------------------------

autosummary_generate = True
autosummary_ignore_module_all = False  # `__all__` says what is public
autosummary_imported_members = False
#: What only the library itself calls, by class or module. The pages leave it out.
INTERNAL = {
    "paracond.composition": ["Renamed", "Ruled"],
    "paracond.families": ["is_class", "family_from"],
    "paracond.guidance": ["Guided", "check_weight", "doubt"],
    "Engine": [
        "capturable",
        "choose_threads",
        "fused",
        "join_side_stream",
        "move_towards",
        "of",
        "pool",
        "precision",
        "program",
        "rounded_copy",
        "side_stream",
        "synchronise",
        "twin",
    ],
    "Trainer": ["finish", "identity", "load_state_dict", "result", "state_dict"],
    "Stepwise": ["finish", "result"],
    "Learner": ["identity", "load_state_dict", "state_dict"],
    "JointModel": ["check_names", "index"],
    "Context": ["describe", "values"],
    "Converged": ["run"],
    "Sweeps": ["run"],
}
OTHERS = ("__main__", "cli", "experiments")


def _modules() -> list[str]:
    """All modules that the pages may show."""
    found = pkgutil.walk_packages(paracond.__path__, "paracond.")
    shown = [each.name for each in found if each.name.split(".")[1] not in OTHERS]
    return ["paracond", *shown]


def _undocumented(module: str) -> list[str]:
    """The names of a module that would be entries without text."""
    return [
        name
        for name, value in vars(import_module(module)).items()
        if callable(value) and not inspect.getdoc(value)
    ]


PUBLIC = {name: getattr(paracond, name) for name in paracond.__all__}
ERRORS = [
    name
    for name, value in PUBLIC.items()
    if inspect.isclass(value) and issubclass(value, Exception)
]
autosummary_context = {  # what the page of `paracond` lists
    "public": {
        "Classes": [
            name
            for name, value in PUBLIC.items()
            if inspect.isclass(value) and name not in ERRORS
        ],
        "Functions": [
            name for name, value in PUBLIC.items() if inspect.isfunction(value)
        ],
        "Exceptions and warnings": ERRORS,
    },
    "public_modules": [
        f"~{value.__name__.removeprefix('paracond.')}"
        for value in PUBLIC.values()
        if inspect.ismodule(value)
    ],
    "left_out": {
        name: [*INTERNAL.get(name, []), *_undocumented(name)] for name in _modules()
    },
    "set_in_init": {  # set in __init__, where autodoc does not see them
        "Learner": {
            "averaged": "The model with moving-average weights. `fit` returns it."
        }
    },
}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False

# --- the gallery --------------------------------------------------------------------------------------------------

torch.set_num_threads(
    1
)  # the networks are small: on busy cores, threads only wait for each other
progress.quiet = True  # the output of a script has no lines about its progress
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_memory": False,
    "write_computation_times": False,
    "show_signature": False,
    "min_reported_time": 3600,
    "abort_on_example_error": False,
    "copyfile_regex": r".*\.txt",
}

# --- the look -----------------------------------------------------------------------------------------------------

html_theme = "furo"
html_title = "paracond"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_copyright = False
smartquotes = False  # docstrings quote values of arguments
html_copy_source = False
pygments_style = "default"
pygments_dark_style = "github-dark"
copybutton_exclude = ".linenos, .gp, .go"

# --- links that work on the site and in the repository ------------------------------------------------------------

ON_SITE = {"](../RESULTS.md": "](results.md"} | {
    f"](../models/{name}/README.md": f"](models/{name}.md"
    for name in ("mnist", "fashion", "faces")
}


def _use_pages(app, docname, source) -> None:
    """Links to files of the repository that are pages of the site become links to these pages."""
    for there, here in ON_SITE.items():
        source[0] = source[0].replace(there, here)


def _skip_member(app, what, name, obj, skip, options) -> bool | None:
    """Leave out the members of `INTERNAL`, and those whose only docstring is torch's."""
    written = getattr(obj, "fget", obj)
    owner = getattr(written, "__qualname__", "").rpartition(".")[0].rpartition(".")[2]
    if name in INTERNAL.get(owner, []):
        return True
    from_torch = hasattr(torch.nn.Module, name) and not getattr(obj, "__doc__", None)
    return True if from_torch else None


def setup(app) -> None:
    app.connect("source-read", _use_pages)
    app.connect("autodoc-skip-member", _skip_member)
