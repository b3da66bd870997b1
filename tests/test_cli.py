"""The command line: help without torch, a table that agrees with the modules, clear refusals."""

import re
import shlex
from pathlib import Path

import pytest
import tyro
from imports import imported

from paracond import __version__
from paracond.cli import main as cli
from paracond.cli.registry import COMMANDS, EXPERIMENTS

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "numpy", "matplotlib", "sklearn", "scipy", "rich", "tyro", "pooch", "PIL"}
DOCUMENTS = [ROOT / "README.md", ROOT / "RESULTS.md", *ROOT.glob("models/*/README.md"), *ROOT.glob("docs/*.md")]


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["list"], ["reproduce", "--help"], ["reproduce", "isin"]])
def test_help_and_lists_import_nothing_heavy(words):
    program = f"from paracond.cli.main import main\ntry:\n    main({words!r})\nexcept SystemExit:\n    pass"
    assert not HEAVY & imported(program)


@pytest.mark.parametrize("name", ["sample", "classify"])
def test_generic_commands_import_no_experiment(name):
    found = imported(f"import paracond.cli.{name}")
    assert f"paracond.cli.{name}" in found
    experiments = {module.split(".")[2] for module in found if module.startswith("paracond.experiments.")}
    assert experiments <= {"common"}
    assert not {"matplotlib", "sklearn"} & found


@pytest.mark.parametrize("name, entry", [*EXPERIMENTS.items(), *COMMANDS.items()])
def test_the_table_agrees_with_the_modules(name, entry):
    if entry.module:
        module = entry.load()
        assert module.Config.__doc__.strip().splitlines()[0] == entry.help
        assert callable(module.main)


def test_help_names_everything(capsys):
    cli.main(["--help"])
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed and entry.help in printed for name, entry in COMMANDS.items())
    cli.main(["reproduce", "--help"])
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed and entry.help in printed for name, entry in EXPERIMENTS.items())
    cli.main(["--version"])
    assert capsys.readouterr().out == f"paracond {__version__}\n"
    cli.main(["list", "--help"])
    assert "usage: paracond list" in capsys.readouterr().out


@pytest.mark.parametrize("words, table", [([], COMMANDS), (["reproduce"], EXPERIMENTS)])
def test_without_a_name_there_is_help_and_an_error(words, table, capsys):
    with pytest.raises(SystemExit) as error:
        cli.main(words)
    assert error.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith("usage: ") and all(name in printed for name in table)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_shows_its_options(name, capsys):
    with pytest.raises(SystemExit) as error:
        cli.main(["reproduce", name, "--help"])
    assert error.value.code == 0
    printed = capsys.readouterr().out
    assert f"usage: paracond reproduce {name}" in printed and "--out" in printed and "--quick" in printed


def test_the_kernels_of_chain_length_refuse_another_device(capsys):
    with pytest.raises(SystemExit):
        cli.main(["reproduce", "chain-length", "--quick", "--device", "cuda"])
    assert "cuda" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, message",
    [
        (["trian", "mnist"], r"there is no command 'trian' \(do you mean train\?\); choose one of list, demo"),
        (["dance"], r"there is no command 'dance'; choose one of list, demo, .* \(see paracond --help\)"),
        (["reproduce", "fashon"], r"there is no experiment 'fashon' \(do you mean fashion\?\); choose one of demo"),
        (["list", "all"], "list takes no arguments, found 'all'"),
    ],
)
def test_unknown_names_get_one_sentence(words, message):
    with pytest.raises(SystemExit, match=f"^paracond: {message}"):
        cli.main(words)


#: Parts of recorded commands that exist at the commit next to them, but no longer here.
RECORDED = ("reproduce levers", "--variants")


def documented() -> list[str]:
    """Every command in the documents, in the text and in blocks of code."""
    found = []
    for text in (path.read_text(encoding="utf-8") for path in DOCUMENTS):
        found += re.findall(r"`(paracond [^`\n]+)`", text)
        for block in re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            found += [re.split(r"\s+#", line)[0] for line in block.splitlines() if line.startswith("paracond ")]
    return sorted(command for command in set(found) if not any(words in command for words in RECORDED))


@pytest.mark.parametrize("command", documented())
def test_documented_commands_parse(command):
    """--no-stopwatch is in commands of earlier commits only: benchmarks/updates.py takes the times now."""
    words = shlex.split(command.replace("DIR", ".").replace("MODEL", "models/mnist"))[1:]
    name, *rest = [word for word in words if word != "--no-stopwatch"]
    if name in ("list", "--help") or rest[:1] == ["NAME"] or "--help" in rest:
        assert name in COMMANDS or name == "--help"
        return
    entry, rest = (EXPERIMENTS[rest[0]], rest[1:]) if name == "reproduce" else (COMMANDS[name], rest)
    tyro.cli(entry.load().Config, args=rest)
