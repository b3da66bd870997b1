"""The command line. A thin shell: it parses, calls a recipe, and prints what the recipe returns.

paracond list
paracond demo [--out DIR] ...
paracond reproduce NAME [--out DIR] [--device auto|cpu|cuda] [--seed N] [--quick] ...
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import tyro

from paracond.recipes import demo, ising
from paracond.state import InputError

RECIPES = {"demo": demo, "ising": ising}


@dataclass(frozen=True)
class List:
    """List the experiments."""


@dataclass(frozen=True)
class Reproduce:
    """Run an experiment: prints a table, writes DIR/results.json and DIR/report.html."""

    recipe: (
        Annotated[demo.Config, tyro.conf.subcommand("demo")] | Annotated[ising.Config, tyro.conf.subcommand("ising")]
    )


Command = (
    Annotated[List, tyro.conf.subcommand("list")]
    | Annotated[demo.Config, tyro.conf.subcommand("demo")]
    | Annotated[Reproduce, tyro.conf.subcommand("reproduce")]
)


def main(arguments: list[str] | None = None) -> None:
    """Entry point of `paracond`."""
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["reproduce"] and given[1:2] and not given[1].startswith("-") and given[1] not in RECIPES:
        sys.exit(f"paracond: no experiment is called {given[1]!r}; there are {', '.join(RECIPES)} (see paracond list)")
    command = tyro.cli(
        Command,
        prog="paracond",
        description="Joint probability models from parametric conditionals.",
        args=arguments,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )
    if isinstance(command, List):
        _list()
    else:
        _run(command.recipe if isinstance(command, Reproduce) else command)


def _list() -> None:
    for name, recipe in RECIPES.items():
        print(f"{name:12} {(recipe.Config.__doc__ or '').strip().splitlines()[0]}")
    print("\nRun one with: paracond reproduce NAME  (--help lists its options)")


def _run(config) -> None:
    recipe = next(r for r in RECIPES.values() if isinstance(config, r.Config))
    try:
        outcome = recipe.main(config)
    except InputError as error:
        sys.exit(f"paracond: {error}")
    outcome.show()
    print(f"report:  {config.out / 'report.html'}\nresults: {config.out / 'results.json'}")
