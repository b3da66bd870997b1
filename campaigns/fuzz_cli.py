"""Fuzz the command line: good words, words with a sign changed, and hostile ones, in one process.

    ok       the command did what it was asked for
    refused  it ended with one line that begins with "paracond:", or with the usage of the command
    raw      any other exception, a traceback in the output, or no end
    silent   it answered, but ignored something that it was given
    denied   it refused a command line without any fault

python campaigns/fuzz_cli.py [--count N] [--seconds S] [--seed K] [--out DIR]
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import random
import shlex
import shutil
import signal
import struct
import tempfile
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Tally, parser, trials, write

import paracond as pc
from paracond.cli.main import main as paracond
from paracond.experiments.common.results import Metric

LIMIT = 30  # seconds of one command
NAMES = ("Hat", "Long hair", "größe", "a=b")
VARIABLES = {
    "x": pc.Binary((1, 6, 5)),
    "y": pc.Real((3, 4, 4)),
    "c": pc.Categorical(3),
    "a": pc.Binary(4),
    "r": pc.Real(2),
}
NUMBERS = (
    "",
    " ",
    "nan",
    "-nan",
    "inf",
    "-inf",
    "1e39",
    "1e400",
    "1e-400",
    "0x10",
    "1_0",
    "٣",
    "1,",
    ",1",
    "1,,2",
    "1;2",
)
NUMBERS += (
    "9" * 30,
    "9" * 5000,
    "-0",
    "+1",
    "1e0",
    "true",
    "None",
    "0.5",
    "-1",
    "3",
    "1,0",
    "0,1,0",
    "=",
    "==1",
    "1=1",
)
TEXTS = (
    "",
    " ",
    "=",
    "==",
    "a=",
    "=1",
    "a",
    "[",
    "]",
    "[]=1",
    "a[]=1",
    "a[0=1",
    "a0]=1",
    "a[[0]]=1",
    "a[0][1]=1",
    "é=1",
)
TEXTS += (
    "a[-1]=1",
    "a[4]=1",
    "a[٣]=1",
    "a[1e0]=1",
    "c[0]=1",
    "x[0]=1",
    "Hat=1",
    "a[hat]=1",
    "q=1",
    "\x00=1",
    "a=\x00",
    "\n",
)
TEXTS += (
    "a[" + "9" * 5000 + "]=1",
    "x=\udcff.png",
    "x=" + "b" * 300 + ".png",
    "a=1\nb=2",
    "\x1b[31m=1",
    "--",
    "-",
    "-1",
    "😀=😀",
)
OUTS = (
    "",
    " ",
    "\x00",
    "o" * 300,
    "/proc/1/x",
    "taken",
    "taken/deeper",
    "full",
    ".",
    "/dev/null",
    "\udcff",
    "a\nb",
    "pipe",
)
MODELS = (
    "nowhere",
    "",
    "\x00",
    "taken",
    "full",
    "broken",
    "pipe",
    "m" * 300,
    "saved/model.json",
    "\udcff",
    "deep",
    "odd",
)
COUNTS = (
    "-1",
    "0",
    "x",
    "",
    "nan",
    "1e3",
    "9" * 30,
    "9" * 5000,
    "1.5",
    "None",
    "1,2",
    "0x1",
    "-9",
    "١",
    "1000000000000",
)
WORDS = (
    "",
    " ",
    "all",
    "top",
    "left",
    "middle",
    "mask.png",
    "nowhere.png",
    "taken",
    "\x00",
    "é",
    "ALL",
    "wrong.png",
    "pipe",
)
DEVICES = ("cpu", "cuda", "cuda:1", "cuda:", "gpu", "", "cuda:-1", "CPU", "\x00", "meta", "mps", "cuda:99999999999")
SIGNS = "=[],.-+ eé0\x00\n\"'\\%{}😀"


@dataclass
class Line:
    """A command line, and what must be true of its answer.

    meant: values by group and coordinate (None: the whole group), as they were given.
    rows: the number of rows that was asked for.
    doubled: whether something was given twice that cannot be true twice.
    odd: whether a word may be wrong.
    """

    words: list[str] = field(default_factory=list)
    meant: list[tuple[str, int | None, np.ndarray]] = field(default_factory=list)
    rows: int | None = None
    doubled: bool = False
    odd: bool = False


class Fuzz:
    """Draws command lines and runs them, in the current folder, which `prepare` has filled."""

    def __init__(self, seed: int):
        self.draw = random.Random(seed)
        self.number = 0
        torch.manual_seed(seed)
        prepare()
        self.model = pc.JointModel.load("saved")

    # --- words ---

    def line(self) -> Line:
        kind = self.draw.choices(("sample", "classify", "other"), (12, 5, 2))[0]
        if kind == "other":
            return Line(self.other(), odd=True)
        line = Line([kind])
        line.words.append(self.pick(line, "saved", MODELS, 0.06))
        for _ in range(self.draw.choices(range(4), (1, 4, 3, 1))[0] or kind == "classify"):
            self.give(line, want="c" if kind == "classify" else None)
        for _ in range(self.draw.choices(range(4), (6, 3, 2, 1))[0]):
            self.option(line, kind)
        if not self.has(line, "--sweeps") and self.draw.random() < 0.9:
            line.words += ["--sweeps", str(self.draw.randint(1, 2))]
        if kind == "sample" and not self.has(line, "--rows") and self.draw.random() < 0.8 and not self.has_rows(line):
            line.rows = self.draw.randint(1, 4)
            line.words += ["--rows", str(line.rows)]
        if not self.has(line, "--out"):
            self.number += 1
            line.words += ["--out", f"out/{self.number}" + (".csv" if kind == "classify" else "")]
        return line

    def has(self, line: Line, name: str) -> bool:
        return any(word.partition("=")[0] == name for word in line.words)

    def has_rows(self, line: Line) -> bool:
        return any(len(values) > 1 for _, _, values in line.meant)

    def pick(self, line: Line, good: str, bad: Sequence[str], chance: float) -> str:
        if self.draw.random() >= chance:
            return good
        line.odd = True
        return self.draw.choice(bad)

    def mutated(self, word: str) -> str:
        """A word with a sign deleted, changed, inserted or doubled."""
        at = self.draw.randrange(len(word) + 1)
        sign = self.draw.choice(SIGNS)
        return self.draw.choice(
            (word[:at] + word[at + 1 :], word[:at] + sign + word[at + 1 :], word[:at] + sign + word[at:])
        )

    def give(self, line: Line, want: str | None) -> None:
        """Add one --given, or words to the last one."""
        here = line.words[-1:] != ["saved"] and "--given" in line.words and self.draw.random() < 0.3
        line.words += [] if here and line.words[-2] == "--given" else ["--given"]
        for _ in range(self.draw.choice((1, 1, 1, 2))):
            chance = self.draw.random()
            line.odd |= chance < 0.42
            if chance < 0.12:
                line.words.append(self.draw.choice(TEXTS))
            elif chance < 0.24:
                line.words.append(f"{self.draw.choice('xycart')}={self.draw.choice(NUMBERS)}")
            elif chance < 0.34:
                line.words.append(
                    f"{self.draw.choice('xycart')}={self.draw.choice(sorted(os.listdir('hostile')))}".replace(
                        "=", "=hostile/", 1
                    )
                )
            else:
                word, meant = self.good(want)
                if chance < 0.42:
                    line.words.append(self.mutated(word))
                    continue
                line.words.append(word)
                clash = [m for m in line.meant if m[0] == meant[0] and (None in (m[1], meant[1]) or m[1] == meant[1])]
                line.doubled |= bool(clash)
                line.meant.append(meant)

    def good(self, want: str | None) -> tuple[str, tuple[str, int | None, np.ndarray]]:
        """A right word, and what it means."""
        name = self.draw.choice([name for name in "xycart" if name != want])
        count = self.draw.choice((1, 1, 1, 2, 3))
        if name in "xy" and self.draw.random() < 0.7:
            kind = self.draw.choice((".png", ".npy"))
            values = np.load(f"{name}.npy")
            return f"{name}={name}{kind}", (name, None, values)
        if name == "a" and self.draw.random() < 0.7:
            k = self.draw.randrange(4)
            bits = [self.draw.randint(0, 1) for _ in range(count)]
            key = self.draw.choice((str(k), NAMES[k] if "=" not in NAMES[k] else str(k)))
            return f"a[{key}]={','.join(map(str, bits))}", ("a", k, np.array(bits, float))
        numbers = [self.draw.randint(0, 2 if name == "c" else 1) for _ in range(count)]
        return f"{name}={','.join(map(str, numbers))}", (name, None, np.array(numbers, float))

    def option(self, line: Line, kind: str) -> None:
        """Add an option, perhaps a second time."""
        choices: dict[str, Callable[[], list[str]]] = {
            "--seed": lambda: [self.pick(line, str(self.draw.randrange(99)), COUNTS, 0.4)],
            "--sweeps": lambda: [self.pick(line, "2", COUNTS[:-1], 0.4)],
            "--seen": lambda: [self.draw.choice(WORDS)],
            "--device": lambda: [self.pick(line, "cpu", DEVICES, 0.6)],
            "--invert": lambda: [],
            "--overwrite": lambda: [],
            "--out": lambda: [self.draw.choice(OUTS)],
            "--help": lambda: [],
        }
        if kind == "sample":
            choices |= {
                "--rows": lambda: [self.pick(line, str(self.draw.randint(1, 4)), COUNTS, 0.5)],
                "--edit": lambda: [self.pick(line, self.draw.choice(("a[1]=1", "a[Hat]=0", "x=1")), TEXTS, 0.3)],
                "--edit-sweeps": lambda: [self.pick(line, "1", COUNTS[:-1], 0.3)],
                "--guidance": lambda: [self.pick(line, "2.5", NUMBERS, 0.4)],
                "--separate": lambda: [],
            }
        else:
            choices |= {"--want": lambda: [self.pick(line, "a", ("", "q", "x", "c", "r", "t", "\x00"), 0.6)]}
            choices |= {"--dataset": lambda: [self.draw.choice(("mnist", "faces", ""))], "--data": lambda: ["nowhere"]}
        name = self.draw.choice(sorted(choices))
        sound = ("--seed", "--sweeps", "--rows", "--edit", "--overwrite", "--separate")
        line.odd |= name not in sound or (name == "--edit" and self.has(line, name))
        value = choices[name]()
        if self.has(line, name) and name not in ("--edit", "--help"):
            line.doubled = True
        if name == "--rows" and value[0].isascii() and value[0].isdecimal():
            line.rows = int(value[0][:20])
        joined = len(value) == 1 and self.draw.random() < 0.2
        line.words += [f"{name}={value[0]}"] if joined else [name, *value]

    def other(self) -> list[str]:
        names = (
            "",
            "list",
            "smaple",
            "--version",
            "--help",
            "-h",
            "demo",
            "reproduce",
            "train",
            "\x00",
            "é",
            "--given",
        )
        more = (
            "nothing",
            "--help",
            "",
            "--quick",
            "--seed",
            "--updates",
            "-1",
            "--device",
            "gpu",
            "--out",
            "taken",
            "faces",
        )
        first = self.draw.choice(names)
        rest = [self.draw.choice(more) for _ in range(self.draw.randrange(4))]
        if first in ("demo", "reproduce", "train"):  # none of them may begin to learn
            rest += ["--out", "taken"]
        return [first, *rest][: self.draw.choice((1, 9))] if first not in ("demo", "train") else [first, *rest]

    # --- outcomes ---

    def judge(self, line: Line) -> tuple[str, str]:
        """The outcome, and why it is a bad one."""
        outcome, why = run(line.words)
        counts = {len(values) for _, _, values in line.meant if len(values) > 1} | ({line.rows} - {None})
        if outcome == "refused" and not (line.odd or line.doubled or len(counts) > 1):
            return "denied", "it has no fault"
        if outcome != "ok" or line.words[0] not in ("sample", "classify") or "--help" in line.words:
            return outcome, why
        if line.doubled:
            return "silent", "something was given twice"
        return self.check_table(line) if line.words[0] == "classify" else self.check_draws(line)

    def check_draws(self, line: Line) -> tuple[str, str]:
        """Whether all that was given is in the draws."""
        out = line.words[-1] if line.words[-2] == "--out" else None
        if out is None or not Path(out, "samples.npz").is_file():
            return "ok", ""
        drawn = dict(np.load(Path(out, "samples.npz")))
        rows = len(drawn["c"])
        if line.rows is not None and rows != line.rows:
            return "silent", f"{line.rows} rows were asked for, and {rows} drawn"
        seen = "--seen" not in " ".join(line.words)
        for name, key, values in line.meant:
            if name in ("x", "y") and (not seen or "--invert" in line.words):
                continue
            if name == "t":  # context is not drawn
                continue
            found = drawn[name] if key is None else drawn[name][:, key]
            wanted = values.reshape(-1, *[1] * (found.ndim - 1)) if values.ndim == 1 else values
            if not np.allclose(found, np.broadcast_to(wanted, found.shape), atol=1e-6):
                return "silent", f"{name}[{key}] is not what was given"
        return "ok", ""

    def check_table(self, line: Line) -> tuple[str, str]:
        """Whether the table has what the Python API answers."""
        out = line.words[-1]
        plain = all(
            word in ("--given", "--sweeps", "--out", "--device") or "=" in word
            for word in line.words[2:]
            if word[:1] == "-"
        )
        words = [word for word in line.words if "=" in word]
        if not plain or len(words) != len(line.meant) or not Path(out).is_file() or "--sweeps" not in line.words:
            return "ok", ""
        rows = max(len(values) for _, _, values in line.meant)
        given: dict[str, Any] = {}
        for name, key, values in line.meant:
            shape = VARIABLES[name].event_shape if name in VARIABLES else (2,)
            value = torch.as_tensor(
                np.broadcast_to(
                    values.reshape(-1, *[1] * len(shape)) if values.ndim == 1 else values, (len(values), *shape)
                ).copy()
            )
            value = value.expand(rows, *shape).clone()
            mask = torch.ones(1, *shape, dtype=torch.bool) if key is None else torch.arange(shape[0])[None] == key
            if name in given:
                value = torch.where(mask, value, given[name].value)
                mask = mask | given[name].mask
            given[name] = pc.Observed(value, mask)
        sweeps = int(line.words[line.words.index("--sweeps") + 1])
        answer = pc.query(self.model, given, ["c"], stop=pc.Sweeps(sweeps))
        with open(out, newline="") as file:
            table = list(csv.DictReader(file))
        found = [float(row["probability"]) for row in table]
        wanted = answer.probabilities["c"].amax(-1).tolist()
        if len(found) != len(wanted) or not np.allclose(found, wanted, atol=2e-3):
            return "silent", f"the table has {found}, the answer is {wanted}"
        return "ok", ""


def run(words: list[str]) -> tuple[str, str]:
    """Carry out one command line; returns the outcome and why it is a bad one."""
    out, err = io.StringIO(), io.StringIO()
    outcome, why = "ok", ""
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with time_limit():
                paracond(words)
        except SystemExit as stop:
            if isinstance(stop.code, str):
                one_line = stop.code.startswith("paracond: ") and stop.code.isprintable() and len(stop.code) < 1100
                outcome, why = ("refused", "") if one_line else ("raw", f"message {stop.code!r:.200}")
            elif stop.code:
                usage = stop.code == 2 and err.getvalue().strip()
                outcome, why = ("refused", "") if usage else ("raw", f"exit {stop.code} with {err.getvalue()!r:.200}")
        except BaseException as error:
            outcome, why = "raw", f"{type(error).__name__}: {error!s:.200}"
    if "Traceback (most recent" in out.getvalue() + err.getvalue():
        outcome, why = "raw", "a traceback in the output"
    return outcome, why


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """End what takes too long, where signals allow it."""
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(number, frame):
        raise TimeoutError(f"no end after {LIMIT} seconds")  # an OSError, so see `run`

    former = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT)
    began = time.monotonic()
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)
        if time.monotonic() - began >= LIMIT:
            raise RuntimeError(f"no end after {LIMIT} seconds")


# --- files ------------------------------------------------------------------------------------------------------------


def prepare() -> None:
    """Fill the current folder with a model, good files and hostile ones."""
    from PIL import Image

    conditionals = {
        name: pc.Conditional(family, pc.networks.mlp({**VARIABLES, "t": pc.Binary(2)}, name, hidden=8))
        for name, family in VARIABLES.items()
    }
    model = pc.JointModel(
        conditionals, context={"t": pc.Context(pc.Binary(2), 0)}, regeneration=pc.Regeneration(0.5, 1)
    )
    model.save("saved")
    Path("saved/names.json").write_text(json.dumps({"a": NAMES}))
    for folder, text in (("broken", "{"), ("deep", '{"a":' * 5000), ("odd", '{"a": [1, 2, 3, 4]}')):
        shutil.copytree("saved", folder)
        Path(folder, "names.json").write_text(text)
    Path("taken").write_text("mine")
    os.mkfifo("pipe")
    for folder in ("full", "full/samples.npz", "hostile", "hostile/folder.png", "hostile/folder.npy", "out"):
        os.mkdir(folder)
    levels = np.random.default_rng(0).integers(0, 256, (6, 5), dtype=np.uint8)
    Image.fromarray(levels).save("x.png")
    np.save("x.npy", (levels[None, None] > 127).astype(np.float32))
    colours = np.random.default_rng(1).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(colours).save("y.png")
    np.save("y.npy", colours.transpose(2, 0, 1)[None].astype(np.float32) / np.float32(255))
    Image.fromarray(np.eye(6, 5, dtype=np.uint8) * 255).save("mask.png")
    Image.fromarray(levels[:3]).save("wrong.png")
    _hostile(Path("hostile"), Path("x.png").read_bytes())


def _hostile(folder: Path, png: bytes) -> None:
    draw = random.Random(0)
    for k in range(12):
        at = draw.randrange(8, len(png))
        Path(folder, f"cut{k}.png").write_bytes(png[:at])
        changed = bytearray(png)
        changed[at] ^= 1 << draw.randrange(8)
        Path(folder, f"changed{k}.png").write_bytes(changed)
    arrays = {
        "nothing": np.float64(1), "none": np.zeros((0, 4)), "texts": np.array(["1", "0"]), "complex": np.ones(4) * 1j,
        "structured": np.zeros(3, [("a", int)]), "nan": np.full((1, 4), np.nan), "large": np.full((1, 2), 1e39),
        "unsigned": np.ones((2, 4), np.uint64), "big": np.ones((2, 4), ">f4"),
        "columns": np.asfortranarray(np.ones((3, 4))),
        "classes": np.array([0, 1, 2], np.uint8), "huge": np.array([2**64 - 1], np.uint64),
        "dates": np.zeros(3, "M8[s]"),
        "bits": np.ones((2, 4), bool), "wide": np.ones((1, 1, 6, 5), np.longdouble),
        "bytes": np.full((1, 3, 4, 4), 255, np.uint8),
    }  # fmt: skip
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    np.save(folder / "objects.npy", np.array([{}, None], object), allow_pickle=True)
    absurd = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000, 6, 5, 1000000), }"
    deep = "{'descr': '<f4', 'fortran_order': False, 'shape': " + "(" * 3000
    for name, header in (("absurd", absurd), ("deep", deep), ("negative", absurd.replace("1000000000", "-1"))):
        text = header.encode() + b"\n"
        Path(folder, f"{name}.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text)
    body = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    Path(folder, "bomb.png").write_bytes(
        _png([(b"IHDR", body), (b"IDAT", zlib.compress(bytes(10**6))), (b"IEND", b"")])
    )
    small = struct.pack(">IIBBBBB", 5, 6, 8, 0, 0, 0, 0)
    text = (b"zTXt", b"a\0\0" + zlib.compress(bytes(10**8)))
    chunks = [(b"IHDR", small), text, (b"IDAT", zlib.compress(bytes(6 * 6))), (b"IEND", b"")]
    Path(folder, "text.png").write_bytes(_png(chunks))
    Path(folder, "twice.png").write_bytes(_png([chunks[0], (b"IHDR", body), *chunks[2:]]))
    for name in ("text.npy", "bytes.png"):
        Path(folder, name).write_bytes(draw.randbytes(300))
    for name in ("empty.npy", "empty.png"):
        Path(folder, name).touch()
    os.mkfifo(folder / "pipe.png")
    os.mkfifo(folder / "pipe.npy")


def _png(chunks: Sequence[tuple[bytes, bytes]]) -> bytes:
    parts = [struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


# --- the campaign -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def own_folder() -> Iterator[None]:
    """Work in a folder that is removed at the end, offline."""
    former, environment, threads = os.getcwd(), dict(os.environ), torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ |= {"PARACOND_DATA": folder, "XDG_CACHE_HOME": folder, "HOME": folder}
        try:
            yield
        finally:
            os.chdir(former)
            os.environ.clear()
            os.environ.update(environment)
            torch.set_num_threads(threads)


def campaign(count: int, seconds: float, seed: int) -> Tally:
    """Run so many command lines."""
    tally = Tally("command lines", bad=("raw", "silent", "denied"))
    with own_folder():
        fuzz = Fuzz(seed)
        for number in trials(count, seconds):
            line = fuzz.line()
            outcome, why = fuzz.judge(line)
            tally.add(outcome, f"--seed {seed}, line {number}: {why}: paracond {shlex.join(line.words)!r:.600}")
            shutil.rmtree("runs", ignore_errors=True)
    return tally


def main() -> None:
    found = parser(__doc__, 3000, 900.0).parse_args()
    began = time.monotonic()
    tally = campaign(found.count, found.seconds, found.seed)
    print(tally)
    metrics = [
        Metric("cli_calls", tally.total, "higher", goal=3000, about="fuzzed command lines"),
        Metric(
            "cli_raw",
            tally.counts["raw"],
            "lower",
            goal=0,
            about="command lines that ended in a traceback, or not at all",
        ),
        Metric("cli_silent", tally.counts["silent"], "lower", goal=0, about="lines that ignored what was given"),
        Metric("cli_denied", tally.counts["denied"], "lower", goal=0, about="right lines that were refused"),
    ]
    write("fuzz_cli", metrics, time.monotonic() - began, {"count": found.count, "seed": found.seed}, found.out)


if __name__ == "__main__":
    main()
