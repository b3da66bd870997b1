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
from dataclasses import fields
from typing import NoReturn

from paracond import __version__
from paracond.cli.places import require_place
from paracond.cli.registry import COMMANDS, EXPERIMENTS, Entry, unknown

HELP = ("-h", "--help")
MOST_SIGNS = 1000  # of a message
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
    config = tyro.cli(module.Config, prog=prog, args=_once(words, module.Config), config=omit)

    from paracond.data import InputError
    from paracond.experiments.common.results import choose_device
    from paracond.experiments.common.runner import Unfinished

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may hold what a terminal cannot show
    try:
        choose_device(config.device)
        require_place(config)
        result = module.main(config)
        if is_experiment:
            result.show()
            result = f"report:  {config.out / 'report.html'}\nresults: {config.out / 'results.json'}"
        print(result)
    except Unfinished as stop:  # as the time box asked
        print(f"paracond: {stop}")
    except (InputError, OSError) as stop:
        _stop(stop)
    except (MemoryError, RuntimeError) as stop:
        if not (isinstance(stop, MemoryError) or "out of memory" in str(stop) or "can't allocate memory" in str(stop)):
            raise
        _stop("there is not enough memory: ask for fewer rows")
    except KeyboardInterrupt as stop:
        _stop(f"{stop}; continue with --resume" if str(stop) else "interrupted")


def _stop(why: object) -> NoReturn:
    """End with one line, whatever signs the words of the user hold."""
    words = str(why).replace("resume=True", "--resume")  # as options are called here
    text = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in words)
    sys.exit(f"paracond: {text if len(text) <= MOST_SIGNS else text[:MOST_SIGNS] + '...'}")


def _once(words: list[str], settings: type) -> list[str]:
    """Join what follows the same option, where it takes several values. Any other option is refused a second time:
    the parser would forget the first."""
    found: dict[str, list[str]] = {}
    names = {field.name.replace("_", "-"): isinstance(field.default, tuple) for field in fields(settings)}
    plain: list[str] = []
    now = plain
    for word in words:
        if not word.startswith("--") or word == "--":
            now.append(word)
            continue
        option, equals, value = word[2:].partition("=")
        name = option.replace("_", "-")
        name = name.removeprefix("no-") if name not in names else name
        if name in found and not names.get(name, True):
            _stop(f"--{name} is given twice: give it once")
        now = found.setdefault(name, [word.partition("=")[0]])
        now += [value] if equals else []
    if sum(word.startswith("--") for word in words) == len(found):
        return words
    return plain + [word for option in found.values() for word in option]
