"""The command line. A thin shell: it parses, calls a recipe, and prints what the recipe returns.

paracond list
paracond demo [--out DIR] ...
paracond reproduce NAME [--out DIR] [--device auto|cpu|cuda] [--seed N] [--quick] ...
paracond train DATASET [--minutes M] [--resume] ...
paracond sample MODEL [--given NAME=VALUE ...] ...
paracond classify MODEL [--given NAME=VALUE ...] [--dataset NAME] ...
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from paracond.cli import commands as use
from paracond.data import InputError
from paracond.experiments import ising
from paracond.experiments.common.runner import Unfinished
from paracond.experiments.comparison import experiment as compare
from paracond.experiments.detailed_balance import experiment as chain_length
from paracond.experiments.digits import experiment as demo
from paracond.experiments.faces import experiment as faces
from paracond.experiments.images import fashion, levers, mnist

RECIPES = {
    "demo": demo,
    "ising": ising,
    "chain-length": chain_length,
    "mnist": mnist,
    "fashion": fashion,
    "faces": faces,
    "levers": levers,
    "compare": compare,
}
USES: dict[type, Callable[[Any], str]] = {use.Train: use.train, use.Sample: use.sample, use.Classify: use.classify}


@dataclass(frozen=True)
class List:
    """List the experiments."""


@dataclass(frozen=True)
class Reproduce:
    """Run an experiment: prints a table, writes DIR/results.json and DIR/report.html."""

    recipe: (
        Annotated[demo.Config, tyro.conf.subcommand("demo")]
        | Annotated[ising.Config, tyro.conf.subcommand("ising")]
        | Annotated[chain_length.Config, tyro.conf.subcommand("chain-length")]
        | Annotated[mnist.Config, tyro.conf.subcommand("mnist")]
        | Annotated[fashion.Config, tyro.conf.subcommand("fashion")]
        | Annotated[faces.Config, tyro.conf.subcommand("faces")]
        | Annotated[levers.Config, tyro.conf.subcommand("levers")]
        | Annotated[compare.Config, tyro.conf.subcommand("compare")]
    )


Command = (
    Annotated[List, tyro.conf.subcommand("list")]
    | Annotated[demo.Config, tyro.conf.subcommand("demo")]
    | Annotated[Reproduce, tyro.conf.subcommand("reproduce")]
    | Annotated[use.Train, tyro.conf.subcommand("train")]
    | Annotated[use.Sample, tyro.conf.subcommand("sample")]
    | Annotated[use.Classify, tyro.conf.subcommand("classify")]
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
    try:
        _carry_out(command)
    except Unfinished as stop:  # as the time box asked
        print(f"paracond: {stop}")
    except InputError as stop:
        sys.exit(f"paracond: {stop}")
    except KeyboardInterrupt as stop:
        kept = f"{stop}; continue with --resume" if str(stop) else "interrupted"
        sys.exit(f"paracond: {kept}")


def _carry_out(command) -> None:
    if isinstance(command, List):
        _list()
        return
    config = command.recipe if isinstance(command, Reproduce) else command
    _check_place(config)
    if type(config) in USES:
        print(USES[type(config)](config))
    else:
        _run(config)


def _check_place(config) -> None:
    """What will be written has a place, which is said before any work is done for it."""
    out = config.folder if isinstance(config, use.Train) else config.out
    table = isinstance(config, use.Classify)
    if table and out.is_dir():
        raise InputError(f"--out {out} is a folder: give the name of a table, such as {out / 'decisions.csv'}")
    folder = out.parent if table else out
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise InputError(f"--out {out} cannot be written: {there} is a file")


def _list() -> None:
    for name, recipe in RECIPES.items():
        print(f"{name:12} {(recipe.Config.__doc__ or '').strip().splitlines()[0]}")
    print("\nRun one with: paracond reproduce NAME  (--help lists its options)")


def _run(config) -> None:
    recipe = next(r for r in RECIPES.values() if isinstance(config, r.Config))
    outcome = recipe.main(config)
    outcome.show()
    print(f"report:  {config.out / 'report.html'}\nresults: {config.out / 'results.json'}")
