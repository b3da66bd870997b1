"""The command line. A thin shell: it parses, calls a command or an experiment, and prints what that returns.

paracond list
paracond demo [--out DIR] ...
paracond reproduce NAME [--out DIR] [--device auto|cpu|cuda] [--seed N] [--quick] ...
paracond train DATASET [--minutes M] [--resume] ...
paracond sample MODEL [--given NAME=VALUE ...] ...
paracond classify MODEL [--given NAME=VALUE ...] [--dataset NAME] ...

Help and lists come from the table in `registry`, without torch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from tempfile import TemporaryFile
from typing import Any

from paracond import __version__
from paracond.cli.registry import COMMANDS, EXPERIMENTS, Entry, unknown

HELP = ("-h", "--help")
DESCRIPTION = "Joint probability models from parametric conditionals."


def main(arguments: list[str] | None = None) -> None:
    """Entry point of `paracond`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["--version"]:
        print(f"paracond {__version__}")
        return
    name = _chosen("paracond", DESCRIPTION, "command", COMMANDS, words)
    if name is None:
        return
    if name == "list":
        _list(words[1:])
        return
    prog, entry, words = f"paracond {name}", COMMANDS[name], words[1:]
    if name == "reproduce":
        name = _chosen(prog, entry.help, "experiment", EXPERIMENTS, words)
        if name is None:
            return
        prog, entry, words = f"{prog} {name}", EXPERIMENTS[name], words[1:]
    _run(prog, entry, words, name in EXPERIMENTS)


def _chosen(prog: str, about: str, kind: str, table: Mapping[str, Entry], words: list[str]) -> str | None:
    """The first word, which must be in the table; None where help was printed instead."""
    if words and words[0] in table:
        return words[0]
    if words and words[0] not in HELP:
        sys.exit(f"paracond: {unknown(kind, words[0], table)} (see {prog} --help)")
    width = max(map(len, table))
    lines = [f"  {name:{width}}  {entry.help}" for name, entry in table.items()]
    options = ["  -h, --help  show this text, or the options of one of them: " + f"{prog} {kind.upper()} --help"]
    options += ["  --version   show the version"] if kind == "command" else []
    usage = f"usage: {prog} [-h] {kind.upper()} [OPTIONS]"
    text = "\n".join([usage, "", about, "", f"{kind}s:", *lines, "", "options:", *options])
    if words:
        print(text)
        return None
    print(text, file=sys.stderr)
    sys.exit(2)


def _list(words: list[str]) -> None:
    if words and words[0] in HELP:
        print("usage: paracond list\n\nList the experiments.")
        return
    if words:
        sys.exit(f"paracond: list takes no arguments, found {words[0]!r}")
    for name, entry in EXPERIMENTS.items():
        print(f"{name:12} {entry.help}")
    print("\nRun one with: paracond reproduce NAME  (--help lists its options)")


def _run(prog: str, entry: Entry, words: list[str], is_experiment: bool) -> None:
    """Parse the options of one command or experiment, and carry it out."""
    import tyro

    module = entry.load()
    omit = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)
    config = tyro.cli(module.Config, prog=prog, args=words, config=omit)

    from paracond.data import InputError
    from paracond.experiments.common.runner import Unfinished

    try:
        _check_place(config)
        result = module.main(config)
        if is_experiment:
            result.show()
            result = f"report:  {config.out / 'report.html'}\nresults: {config.out / 'results.json'}"
        print(result)
    except Unfinished as stop:  # as the time box asked
        print(f"paracond: {stop}")
    except (InputError, OSError) as stop:
        sys.exit(f"paracond: {stop}")
    except KeyboardInterrupt as stop:
        kept = f"{stop}; continue with --resume" if str(stop) else "interrupted"
        sys.exit(f"paracond: {kept}")


def _check_place(config: Any) -> None:
    """Refuse a folder that cannot be made or written, before any work is done."""
    from paracond.data import InputError

    folder = getattr(config, "folder", config.out).absolute()
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    there = new[-1].parent if new else folder
    if not there.is_dir():
        raise InputError(f"--out {config.out or folder} cannot be written: {there} is a file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"--out {config.out or folder} cannot be written: {error.strerror}") from None
    finally:
        for path in new:
            with suppress(OSError):
                path.rmdir()
