"""Folders from elsewhere that mean harm: `KINDS` are crafted models, `attack_checkpoint` crafts checkpoints.

Each has a digest that fits, so nothing but the checks of what it says can refuse it.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

import paracond as pc
from paracond import serialization
from paracond.model import FORMAT
from paracond.training import checkpoints

Description = dict[str, Any]
Tensors = dict[str, torch.Tensor]
WEIGHTS = "weights-0123456789ab.safetensors"
HUGE = 10**12


@dataclass(frozen=True)
class Kind:
    """A way to craft a folder. `harmless`: it may also load, since what it says is odd but does nothing bad."""

    name: str
    craft: Callable[[Path, pc.JointModel], None]
    harmless: bool = False


# --- files ------------------------------------------------------------------------------------------------------


def sealed(text: str) -> bytes:
    """The text of a JSON object with a digest that fits, whatever it holds."""
    body = text.rstrip().removesuffix("}").rstrip()
    return f'{body},\n "digest": "{hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest()}"\n}}'.encode(
        "utf-8", "surrogatepass"
    )


def parts_of(folder: Path, model: pc.JointModel) -> tuple[Description, Tensors]:
    model.save(folder)
    found = serialization.read(folder, FORMAT)
    for path in folder.iterdir():
        path.unlink()
    return found


def put(folder: Path, description: Description | str, weights: bytes | None) -> None:
    """Write a folder. A description that names weights names these."""
    folder.mkdir(parents=True, exist_ok=True)
    if weights is not None:
        (folder / WEIGHTS).write_bytes(weights)
    if isinstance(description, dict):
        description = json.dumps(description, indent=1)
    (folder / serialization.DESCRIPTION).write_bytes(sealed(description))


def described(name: str, change: Callable[[Description], Any], harmless: bool = False, make: Any = None) -> Kind:
    """Change the description of a model. `make` makes the model, if it is not the usual one."""

    def craft(folder: Path, model: pc.JointModel) -> None:
        description, tensors = parts_of(folder, model if make is None else make())
        payload = save(tensors)
        description |= {"weights": WEIGHTS, "sha256": hashlib.sha256(payload).hexdigest()}
        found = change(description)
        put(folder, found if isinstance(found, str) else description, payload)

    return Kind(name, craft, harmless)


def weighted(name: str, change: Callable[[Tensors], Any], harmless: bool = False) -> Kind:
    """Change the tensors, or return the bytes of the file."""

    def craft(folder: Path, model: pc.JointModel) -> None:
        description, tensors = parts_of(folder, model)
        found = change(tensors)
        payload = found if isinstance(found, bytes) else save(tensors)
        put(folder, description | {"weights": WEIGHTS, "sha256": hashlib.sha256(payload).hexdigest()}, payload)

    return Kind(name, craft, harmless)


def headed(name: str, change: Callable[[dict, bytes], Any], harmless: bool = False) -> Kind:
    """Change the header of the weights file: in place, or return its text, or the bytes of the file."""

    def changed(tensors: Tensors) -> bytes:
        payload = save(tensors)
        length = int.from_bytes(payload[:8], "little")
        header, rest = json.loads(payload[8 : 8 + length]), payload[8 + length :]
        found = change(header, rest)
        if isinstance(found, bytes):
            return found
        text = (found if isinstance(found, str) else json.dumps(header)).encode()
        return struct.pack("<Q", len(text)) + text + rest

    return weighted(f"header: {name}", changed, harmless)


def filed(name: str, change: Callable[[Path], Any], which: str = serialization.DESCRIPTION) -> Kind:
    """Put something else where a file was."""

    def craft(folder: Path, model: pc.JointModel) -> None:
        description, tensors = parts_of(folder, model)
        payload = save(tensors)
        put(folder, description | {"weights": WEIGHTS, "sha256": hashlib.sha256(payload).hexdigest()}, payload)
        path = folder / which
        path.unlink()
        change(path)

    return Kind(f"{which}: {name}", craft)


# --- kinds ------------------------------------------------------------------------------------------------------


def texts() -> Iterator[Kind]:
    """Descriptions that are no description."""

    def text(name: str, payload: str | bytes) -> Kind:
        payload = payload if isinstance(payload, bytes) else sealed(payload)
        return filed(name, lambda path: path.write_bytes(payload))

    head = f'{{"format": "{FORMAT}"'
    for depth in (150, 250, 900, 1100, 100_000, 290_000):
        yield text(f"{depth} lists", head + ', "a": ' + "[" * depth + "]" * depth + "}")
        yield text(f"{depth} objects", head + ', "a": ' + '{"a": ' * depth + "1" + "}" * depth + "}")
        yield text(f"{depth} formats", '{"format": ' + "[" * depth + "]" * depth + "}")
        yield described(f"{depth} lists in a shape", lambda d, depth=depth: nested(d, depth))
    for number in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 30, "9" * 5000, "1" * 4_000_000):
        yield text(f"the number {number[:10]}", head + f', "a": {number}}}')
    yield text("a name twice", head + f', "format": "{FORMAT}"}}')
    yield text("a digest in the middle", '{"digest": "0", ' + head[1:] + "}")
    yield text("two digests", sealed(sealed(head + "}").decode()))
    yield text("many objects", head + ', "a": [' + ",".join(['{"a":{}}'] * 149_000) + "]}")
    yield text("too many objects", head + ', "a": [' + ",".join(["{}"] * 900_000) + "]}")
    yield text("many entries", head + ', "a": {' + ",".join(f'"{k}":{k}' for k in range(400_000)) + "}}")
    yield text("too many entries", head + ', "a": [' + ",".join(["1"] * 3_000_000) + "]}")
    yield text("a long name", head + ', "' + "\U0001f600" * 2_000_000 + '": 1}')
    yield text("a long text", head + ', "a": "' + "\\u00e9" * 1_300_000 + '"}')
    yield text("9 MB of spaces", head + " " * 9_000_000 + "}")
    yield text("no digest", (head + "}").encode())
    yield text("a digest of the earlier format", f'{{"format": "paracond model 1", "digest": "{"0" * 64}"}}'.encode())
    for payload in (
        b"",
        b"{",
        b"null",
        b"3",
        b"[]",
        b'"x"',
        b"\0" * 100,
        b"\xff\xfe{\0}\0",
        b"\xef\xbb\xbf{}",
        b"PK\3\4",
    ):
        yield text(f"the bytes {payload[:12]!r}", payload)
    yield text("half a letter", head + ', "variables": {"\ud800": {}}}')


def nested(description: Description, depth: int) -> str:
    return (
        json.dumps(description)
        .replace('"shape": [3]', '"shape": ' + "[" * depth + "]" * depth)
        .replace('"shape": 3', '"shape": ' + "[" * depth + "]" * depth)
    )


def files() -> Iterator[Kind]:
    """Files that are no files."""
    for which in (serialization.DESCRIPTION, WEIGHTS):
        for device in ("zero", "null", "random", "tty", "full"):
            yield filed(f"a link to {device}", lambda path, device=device: os.symlink(f"/dev/{device}", path), which)
        yield filed("a pipe", os.mkfifo, which)
        yield filed(
            "a link to a pipe", lambda path: (os.mkfifo(f"{path}.pipe"), os.symlink(f"{path}.pipe", path)), which
        )
        yield filed("a folder", os.mkdir, which)
        yield filed("a link to itself", lambda path: os.symlink(path, path), which)
        yield filed("a link to nothing", lambda path: os.symlink(f"{path}.none", path), which)
        yield filed("missing", lambda path: None, which)
        yield filed("empty", lambda path: path.touch(), which)
        yield filed("100 GB of nothing", lambda path: sparse(path, 10**11), which)
        yield filed("64 MB of spaces", lambda path: path.write_bytes(b" " * 2**26), which)
        yield filed("a zip", lambda path: path.write_bytes(b"PK\3\4" + b"\0" * 1000), which)
        yield filed("a pickle", lambda path: path.write_bytes(b"cos\nsystem\n(S'true'\ntR."), which)
    for value in (
        *(
            "../x",
            "/etc/passwd",
            "",
            ".",
            "..",
            "a/b",
            "a\0b",
            "w" * 300,
            "model.json",
            "\u202e",
            WEIGHTS + " ",
            "con:",
        ),
        *(None, 3, [], {}, [WEIGHTS, WEIGHTS], [None], [WEIGHTS, "x"], [[WEIGHTS]], ["x"] * 5000),
        [f"w{k}" for k in range(300_000)],
    ):
        yield described(f"weights {value!r:.30}", lambda d, value=value: d.update(weights=value))
    for value in ("", "0", "0" * 64, None, 3, [], ["0" * 64], {"a": 1}, "é" * 64):
        yield described(f"sha256 {value!r:.30}", lambda d, value=value: d.update(sha256=value))
    for value in (None, 3, [], {}, "x", "paracond model 3", "paracond checkpoint 3", "x" * 10**6, ["paracond model 2"]):
        yield described(f"format {value!r:.30}", lambda d, value=value: d.update(format=value))


def sparse(path: Path, size: int, head: bytes = b"") -> None:
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(size)


def tiny(count: int, shape: str = "1", size: int = 4) -> bytes:
    """A weights file of many tensors."""
    entries = ",".join(
        f'"{k}":{{"dtype":"F32","shape":[{shape}],"data_offsets":[{size * k},{size * k + size}]}}' for k in range(count)
    )
    text = f"{{{entries}}}".encode()
    return struct.pack("<Q", len(text)) + text + b"\0" * (size * count)


def headers() -> Iterator[Kind]:
    """Weights files that lie."""

    def entry(name: str, **changes: Any) -> Kind:
        return headed(
            f"{name} {next(iter(changes.values()))!r:.40}", lambda header, rest: first(header).update(changes)
        )

    for shape in ([-1], [1.5], [True], ["3"], None, 3, [2**62, 2**62], [0], [HUGE], [1] * 65, [0, 2**62], [[1]], {}):
        yield entry("shape", shape=shape)
    for dtype in ("F8_E4M3", "F64", "I64", "BOOL", "BF16", "f32", "", None, 3, [], "C64", "F4"):
        yield entry("dtype", dtype=dtype)
    for places in (
        [0, 0],
        [-4, 0],
        [0, HUGE],
        [HUGE, 0],
        [1, 2, 3],
        [],
        None,
        [0.0, 4.0],
        ["0", "4"],
        [True, 4],
        [4, 0],
    ):
        yield entry("place", data_offsets=places)
    yield headed("tensors that overlap", lambda header, rest: overlap(header))
    yield headed("another part", lambda header, rest: first(header).update(more="x" * 100), True)
    yield headed("one tensor more", lambda header, rest: header.update(more=header[max(header)]))
    yield headed("one tensor less", lambda header, rest: header.pop(max(header)) and None)
    yield headed("none", lambda header, rest: "{}")
    yield headed("a list", lambda header, rest: "[]")
    yield headed("deep", lambda header, rest: "[" * 100_000 + "]" * 100_000)
    yield headed("a name twice", lambda header, rest: json.dumps(header)[:-1] + ", " + json.dumps(header)[1:])
    yield headed("spaces before it", lambda header, rest: "   " + json.dumps(header), True)
    yield headed("a text", lambda header, rest: header.update(__metadata__={"a": 3}))
    yield headed("much metadata", lambda header, rest: header.update(__metadata__={"a": "x" * 7_000_000}, more={}))
    for length in (0, 1, 7, 2**23 + 1, 2**40, 2**63, 2**64 - 1):
        yield headed(f"of {length} bytes", lambda header, rest, n=length: struct.pack("<Q", n) + b"{}" + rest)
    for count in (20_000, 60_000, 110_000):
        yield weighted(f"{count} tensors", lambda tensors, count=count: tiny(count))
        yield weighted(f"{count} empty tensors", lambda tensors, count=count: tiny(count, f"0,{2**60}", 0))
        yield Kind(f"{count} tensors and as many layers", lambda folder, model, count=count: deep(folder, model, count))
    yield weighted("a byte more", lambda tensors: save(tensors) + b"\0")
    yield weighted("a byte less", lambda tensors: save(tensors)[:-1])
    yield weighted("NaN", lambda tensors: min(tensors.items())[1].fill_(float("nan")))
    yield weighted("infinite", lambda tensors: min(tensors.items())[1].fill_(float("inf")))
    yield weighted("a tensor less", lambda tensors: tensors.popitem() and None)
    yield weighted("a tensor more", lambda tensors: tensors.update(more=torch.zeros(1)))
    yield weighted("a large tensor more", lambda tensors: tensors.update(more=torch.zeros(2**24)))
    yield weighted(
        "turned", lambda tensors: tensors.update({k: v.T.contiguous() for k, v in tensors.items() if v.ndim == 2})
    )
    yield weighted("whole numbers", lambda tensors: tensors.update({k: v.long() for k, v in tensors.items()}))
    yield weighted("other names", lambda tensors: renamed(tensors))


def first(header: dict) -> dict:
    return header[min(header)]


def overlap(header: dict) -> None:
    one, two, *_ = sorted(header)
    header[two]["data_offsets"] = [header[one]["data_offsets"][0]] * 2


def renamed(tensors: Tensors) -> None:
    for name in list(tensors):
        tensors["x" + name] = tensors.pop(name)


def deep(folder: Path, model: pc.JointModel, count: int) -> None:
    """As many tensors as the description asks for, with other names."""
    description, _ = parts_of(folder, model)
    description["networks"]["c"] |= {"depth": 10**6, "hidden": 1}
    payload = tiny(count)
    put(folder, description | {"weights": WEIGHTS, "sha256": hashlib.sha256(payload).hexdigest()}, payload)


ABSURD = (
    10**6,
    2**31,
    2**62,
    -1,
    0,
    1e308,
    1.5,
    "x",
    None,
    True,
    [],
    [10**9],
    [2**62] * 50_000,
    [1] * 3,
    {},
    {"c": 2**40},
)
DEEP = [[[[[]]]]]
FEW = (10**9, 2**62, -1, 0, 1e308, "x", None, [10**9], {"c": 2**40})


def families() -> Iterator[Kind]:
    """Groups that take no values, or too many."""
    for value in (*ABSURD, [10**9] * 10, [2] * 65, [1] * 100_000, [0], [-3], [True], ["3"], DEEP):
        for name in ("x", "c", "z"):
            fine = name == "x" and value == [1] * 3
            yield described(
                f"shape of {name} {value!r:.30}", lambda d, n=name, v=value: d["variables"][n].update(shape=v), fine
            )
    for value in (*ABSURD, HUGE, 1, 2, "3", 3.0):
        yield described(f"classes {value!r:.30}", lambda d, v=value: d["variables"]["c"].update(classes=v))
    for argument in ("scale", "initial_scale", "floor", "ceiling", "bounds"):
        for value in (*ABSURD, -1.0, "element", [1, 0], [0], [0, "x"], [-1e308, 1e308], 5e-324):
            kind = f"{argument} {value!r:.30}"
            odd = argument != "scale" or value in ("element", 10**6, 2**31, 2**62, 1e308, 1.5, 5e-324)
            yield described(kind, lambda d, a=argument, v=value: d["variables"]["r"].update({a: v}), odd)
    for name in (
        *("os.system", "builtins.eval", "paracond.JointModel", "torch.nn.Linear", "paracond.Family", "paracond.MLP"),
        *("", ".", "..", "x", "Binary.", ".Binary", "paracond..Binary", "__main__.Binary", "paracond.families.Binary"),
        *(None, 3, [], {}, ["paracond.Binary"], "paracond." + "x" * 10**6, "\0", "paracond._Scene", "numpy.Binary"),
    ):
        usual: Callable[[Description], Any] = lambda d, n=name: d["variables"]["z"].update({"class": n})  # noqa: E731
        yield described(f"family {name!r:.40}", usual, name == ".Binary")
        change: Callable[[Description], Any] = lambda d, n=name: d["networks"]["z"].update({"class": n})  # noqa: E731
        yield described(f"network {name!r:.40}", change, name == "paracond.MLP")
        yield described(f"initializer {name!r:.40}", lambda d, n=name: d["init"]["x"].update({"class": n}))
    for part in ("variables", "networks", "init", "alpha", "context", "regeneration", "tied"):
        usual = {"alpha": (None,), "regeneration": ({},), "init": ({},)}.get(part, ())
        for value in (None, [], {}, 3, "x", ["x"], {"x": None}, {"x": []}, {"x": {}}, {"x": "y"}, {"y": DEEP}):
            fine = value in usual and part != "init"
            yield described(f"{part} {value!r:.30}", lambda d, p=part, v=value: d.update({p: v}), fine)
        yield described(f"no {part}", lambda d, p=part: d.pop(p) and None, part in ("regeneration", "context", "init"))
    yield described("9,000 groups", lambda d: many(d, "variables", 9000))
    yield described("100,000 groups", lambda d: many(d, "variables", 100_000))
    yield described("another argument", lambda d: d["variables"]["z"].update(more=1))
    yield described("no class", lambda d: d["variables"]["z"].pop("class") and None)


def many(description: Description, part: str, count: int) -> None:
    about = description["variables"]["z"] if part == "variables" else {"family": description["variables"]["z"]}
    about = about if part == "variables" else {**about, "default": 0}
    description[part] |= {f"g{k}": about for k in range(count)}


def settings() -> Iterator[Kind]:
    """Weights of the scan, context, regeneration and shared weights that make no sense."""
    for value in (*ABSURD, 5e-324, -0.0):
        fine = value in (10**6, 2**31, 1.5) or value is True or value == 2**62
        yield described(f"alpha {value!r:.30}", lambda d, v=value: d["alpha"].update(x=v), fine)
    yield described("alpha is infinite", lambda d: d.update(alpha=dict.fromkeys(d["alpha"], 1.7e308)))
    yield described("alpha vanishes", lambda d: d.update(alpha=dict.fromkeys(d["alpha"], 1e300) | {"x": 1e-100}))
    yield described("alpha of another", lambda d: d["alpha"].update(more=1.0))
    yield described("alpha of fewer", lambda d: d["alpha"].pop("x") and None)
    for value in (*ABSURD, 2, [0], [0] * 400_000, [[0, 1], [1]], DEEP, "1"):
        fine = value in (0, None, True) and value is not False
        yield described(f"default {value!r:.30}", lambda d, v=value: d["context"]["k"].update(default=v), fine)
    for family in (
        {"class": "Real", "shape": [10**9]},
        {"class": "Categorical", "classes": HUGE},
        {"class": "Binary", "shape": [2] * 60},
    ):
        yield described(f"context {family}", lambda d, f=family: d["context"]["k"].update(family=f))
        yield described(
            f"another context {family}", lambda d, f=family: d["context"].update(m={"family": f, "default": 0})
        )
    yield described("9,000 context groups", lambda d: many(d, "context", 9000))
    yield described("60,000 context groups", lambda d: many(d, "context", 60_000))
    yield described("context that is a group", lambda d: d["context"].update(z=d["context"]["k"]))
    yield described("context without default", lambda d: d["context"]["k"].pop("default") and None)
    for key in ("rate", "warmup"):
        for value in (*ABSURD, 5e-324, 1e-300, 1.1, "0.1", -5, HUGE):
            fine = value is True or (key == "warmup" and value in (10**6, 0)) or (key == "rate" and value == 1)
            yield described(f"{key} {value!r:.30}", lambda d, k=key, v=value: d["regeneration"].update({k: v}), fine)
    yield described("another regeneration", lambda d: d["regeneration"].update(more=1))
    weight, bias, other = (
        f"conditionals.{n}.network.layers.{leaf}" for n, leaf in ((0, "0.weight"), (0, "2.bias"), (2, "2.bias"))
    )
    for name, tied in {
        "itself": {other: other},
        "a circle": {bias: other, other: bias},
        "a chain": {other: bias, bias: weight},
        "another shape": {other: weight},
        "unknown": {other: "x"},
        "unknown name": {"x": bias},
        "no text": {other: None},
        "a list": {other: [bias]},
        "many": {f"conditionals.{k}.network.x": bias for k in range(60_000)},
        "a scale": {"conditionals.0.shared.log_scale": "conditionals.0.init.log_sigma"},
        "part of no conditional": {"x.y": bias, "": bias},
    }.items():
        yield described(f"tied: {name}", lambda d, t=tied: d.update(tied=t))
    yield Kind("tied: much from little", much_from_little)


def much_from_little(folder: Path, model: pc.JointModel) -> None:
    """A network of many layers, all of which are one tensor of the file."""
    variables = {"a": pc.Binary(800), "b": pc.Binary(800)}
    made = {n: pc.networks.mlp(variables, n, hidden=800, depth=2) for n in variables}
    description, tensors = parts_of(
        folder, pc.JointModel({n: pc.Conditional(variables[n], made[n]) for n in variables})
    )
    tied = {}
    for k in range(2):
        description["networks"]["ab"[k]]["depth"] = 120
        for layer in range(0, 241, 2):
            for leaf in ("weight", "bias"):
                tied[f"conditionals.{k}.network.layers.{layer}.{leaf}"] = f"conditionals.0.network.layers.0.{leaf}"
    kept = {f"conditionals.0.network.layers.0.{leaf}" for leaf in ("weight", "bias")}
    payload = save({name: tensor for name, tensor in tensors.items() if name in kept})
    tied = {name: source for name, source in tied.items() if name not in kept}
    put(
        folder, description | {"tied": tied, "weights": WEIGHTS, "sha256": hashlib.sha256(payload).hexdigest()}, payload
    )


# --- networks ---------------------------------------------------------------------------------------------------

IMAGE = {"x": pc.Real((1, 16, 16), scale="learned"), "c": pc.Categorical(3), "s": pc.Categorical(2, (16, 16))}


def mlps() -> pc.JointModel:
    variables = {"x": pc.Binary(3), "c": pc.Binary(3)}
    networks = {"x": pc.networks.mlp(variables, "x", hidden=4), "c": pc.networks.StackedMLP(["x"], 3, 4)}
    return pc.JointModel({n: pc.Conditional(variables[n], networks[n]) for n in variables})


def images(kind: str) -> pc.JointModel:
    variables = {n: IMAGE[n] for n in ("x", "c")}
    networks = {n: pc.networks.image_network(variables, n, width=4, kind=kind) for n in variables}
    init = pc.initializers.pca(variables, "x", ["c"], 3, band=4)
    return pc.JointModel({n: pc.Conditional(variables[n], networks[n], init if n == "x" else None) for n in variables})


def scenes(kind: str) -> pc.JointModel:
    networks = {n: pc.networks.scene_network(IMAGE, n, kind=kind, width=4, hidden=4) for n in IMAGE}
    return pc.JointModel({n: pc.Conditional(IMAGE[n], networks[n]) for n in IMAGE})


def sides() -> pc.JointModel:
    from paracond.baselines.harmonium import rbm

    return rbm(3, 4)


def loglinear() -> pc.JointModel:
    from paracond.theory.kernels import LogLinear

    variables = {"x": pc.Binary(3), "c": pc.Binary(3)}
    return pc.JointModel({n: pc.Conditional(variables[n], LogLinear("xc"[n == "x"], 3)) for n in variables})


#: Arguments that change no tensor of the network: what they say is used, or refused, when it is asked.
CHANGE_NO_TENSOR = {"activation", "noise", "seed", "jitter", "mirrored", "binary", "redundancy", "factor", "labels"}
CHANGE_NO_TENSOR |= {"target", "most", "learned", "transposed", "kind"}
SPECIMENS: dict[str, tuple[Callable[[], pc.JointModel], dict[str, Any]]] = {
    "mlp": (mlps, {"x": "networks", "c": "networks"}),
    "plain": (lambda: images("plain"), {"x": "networks", "c": "networks"}),
    "residual": (lambda: images("residual"), {"x": "networks", "c": "networks"}),
    "pca": (lambda: images("plain"), {"x": "init"}),
    "plain scene": (lambda: scenes("plain"), {"x": "networks", "c": "networks", "s": "networks"}),
    "pyramid": (lambda: scenes("residual"), {"x": "networks", "c": "networks", "s": "networks"}),
    "harmonium": (sides, {"x": "networks", "y": "networks"}),
    "loglinear": (loglinear, {"x": "networks"}),
}


def networks() -> Iterator[Kind]:
    """Every argument of every network, with values that make no sense."""
    for label, (make, places) in SPECIMENS.items():
        model = make()
        for name, part in places.items():
            conditional = model.conditional(name)
            config = (conditional.init if part == "init" else conditional.network).config
            for argument, usual in config.items():
                for value in FEW:
                    unused = argument == "blocks" and config.get("kind") == "plain"
                    odd = unused or argument in CHANGE_NO_TENSOR or same(value, usual)
                    yield described(
                        f"{label} {name}.{argument} {value!r:.30}",
                        lambda d, p=part, n=name, a=argument, v=value: d[p][n].update({a: v}),
                        odd,
                        make,
                    )


def same(value: Any, usual: Any) -> bool:
    """Whether two arguments mean the same: 1 and True, "x" and ["x"], two that are empty."""
    listed = list(usual) if isinstance(usual, (tuple, list)) else usual
    return value in (usual, listed) or (not value and not usual) or (isinstance(value, str) and list(value) == listed)


def asking() -> Iterator[Kind]:
    """A few bytes that ask for much."""
    for hidden, depth in ((16_384, 3), (2**30, 2), (1, 10**6), (2, 10**9), (1, 2**62), (2**62, 2**62), (10**6, 10**6)):
        yield described(
            f"hidden {hidden}, depth {depth}", lambda d, h=hidden, n=depth: d["networks"]["z"].update(hidden=h, depth=n)
        )
    yield described("sizes that add up", lambda d: d["networks"]["z"]["inputs"].update(x=-(10**9), c=10**9))
    yield described("a network that reads itself", lambda d: d["networks"]["z"]["inputs"].update(z=3))
    yield described("a network that reads nothing", lambda d: d["networks"]["z"].update(inputs={}))
    yield described("100,000 inputs", lambda d: d["networks"]["z"].update(inputs={str(k): 1 for k in range(100_000)}))


NORMAL = described("nothing wrong", lambda d: None, harmless=True)
KINDS = [*texts(), *files(), *headers(), *families(), *settings(), *networks(), *asking()]


# --- checkpoints ------------------------------------------------------------------------------------------------

VALUES = (
    -1,
    10**6,
    2**62,
    1e308,
    "x",
    None,
    True,
    [],
    {},
    {"tensor": "/random/torch"},
    {"tensor": "nowhere"},
    {"pairs": []},
)
VALUES += (
    {"pairs": 3},
    {"list": 3},
    {"float": "nan"},
    {"float": "x"},
    {"tensor": []},
    {"more": 1},
    {"tuple": [1]},
    0.5,
)
CONTENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "shorter": lambda t: t.flatten()[: t.numel() // 2].clone(),
    "longer": lambda t: torch.cat([t.flatten(), t.flatten(), torch.zeros(1).to(t.dtype)]),
    "another type": lambda t: t.double() if t.dtype != torch.float64 else t.int(),
    "another kind": lambda t: t.long() if t.is_floating_point() else t.float(),
    "-1": lambda t: torch.full_like(t, 1 if t.dtype == torch.bool else 255 if t.dtype == torch.uint8 else -1),
    "large": lambda t: torch.full_like(t, 1 if t.dtype == torch.bool else 200 if t.dtype == torch.uint8 else 10**6),
    "NaN": lambda t: torch.full_like(t, float("nan")) if t.is_floating_point() else t.flatten()[:0].clone(),
}


def leaves(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """The places of all values in a packed state."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from leaves(item, (*path, key))


def attack_checkpoint(
    make: Any, picture: Any, folder: Path, chance: random.Random, count: int
) -> list[tuple[str, str]]:
    """Restore crafted checkpoints: (outcome, what was crafted). One that is accepted must also run on."""
    trained = make(0)
    trained.fit(12, progress=False)
    trained.save(folder)
    description, tensors = serialization.read(folder, checkpoints.FORMAT)
    places, learner = list(leaves(description["state"]["learner"])), make(1)
    before, found = picture(learner.state_dict()), []
    for number in range(count):
        state, contents = copy.deepcopy(description), dict(tensors)
        what = _crafted(state, contents, places, chance, number)
        payload = save({name: tensor.contiguous() for name, tensor in contents.items()})
        put(folder, state | {"weights": WEIGHTS, "sha256": hashlib.sha256(payload).hexdigest()}, payload)
        try:
            learner.resume(folder)
        except pc.InputError:
            found.append(("refused" if picture(learner.state_dict()) == before else "changed", what))
            continue
        except Exception as error:
            found.append(("raw", f"{what}: {type(error).__name__}: {error!s:.150}"))
            continue
        try:
            learner.fit(12, progress=False)
            found.append(("harmless", what))
        except (pc.InputError, pc.NonFiniteError):
            found.append(("harmless", what))
        except Exception as error:
            found.append(("raw", f"{what}: then {type(error).__name__}: {error!s:.150}"))
        torch.set_num_threads(1)
        learner = make(1)
        before = picture(learner.state_dict())
    return found


def _crafted(state: Description, tensors: Tensors, places: list, chance: random.Random, number: int) -> str:
    """Change one thing of a checkpoint."""
    if number < 2:
        dict_of(state)["threads"] = threads = (10**6, 0)[number]
        pairs = state["state"]["learner"]["pairs"]
        next(pair for pair in pairs if pair[0] == "threads")[1] = threads
        return f"{threads} threads"
    if chance.random() < 0.4:
        name, kind = chance.choice(sorted(tensors)), chance.choice(sorted(CONTENTS))
        tensors[name] = CONTENTS[kind](tensors[name])
        return f"{name}: {kind}"
    *path, last = chance.choice(places)
    inside = state["state"]["learner"]
    for key in path:
        inside = inside[key]
    inside[last] = value = chance.choice(VALUES)
    return f"{'/'.join(map(str, [*path, last]))}: {value!r:.60}"


def dict_of(state: Description) -> dict:
    return dict(state["state"]["learner"]["pairs"])
