"""Does `Real()`, as it comes with `networks.mlp`, hold on ordinary tables?

    python research/defaults_of_real.py --tables DIR [--out runs/defaults_of_real.jsonl] [--real '{"ceiling": null}']
    python research/defaults_of_real.py --show [--out runs/defaults_of_real.jsonl]

One run per table, learning rate and seed. Each column is a group: numbers are `Real()`, standardised by the mean and
standard deviation of their observed values; columns of two values are `Binary()`, other words `Categorical`. Text is
left out, holes are unobserved. Networks are `networks.mlp(groups, name)`, all else is a `Learner` as it comes.

A run has diverged if it raises `NonFiniteError`, or if a sampled number is NaN or more than 100 standard deviations
from the mean: 500 rows of the chain that never begins anew after 200 sweeps, and 500 tours.

A finished run is one line of the file. A run that is in the file is not done again. Runs come in rounds: first one seed
and the higher rate of every table, small tables first.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import itertools
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

import paracond as pc

RATES, SEEDS, FAR = (5e-3, 1e-3), (0, 1, 2), 100.0
LEFT_OUT = ("text", "identifier")


def read(folder: Path, table: str) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The columns of a table as words, "" where there is a hole, and their kinds."""
    kinds = json.loads((folder / "schema.json").read_text())[table]["kinds"]
    with gzip.open(folder / f"{table}.csv.gz", "rt", newline="") as file:
        head, *rows = csv.reader(file)
    columns = {name: [row[k] for row in rows] for k, name in enumerate(head) if kinds[name] not in LEFT_OUT}
    return columns, {name: kinds[name] for name in columns}


def prepared(folder: Path, table: str, arguments: dict) -> tuple[dict[str, pc.Family], pc.Data]:
    """The groups of a table, and its rows."""
    columns, kinds = read(folder, table)
    groups: dict[str, pc.Family] = {}
    values, masks = {}, {}
    for name, words in columns.items():
        seen = torch.tensor([word != "" for word in words])
        if kinds[name] in ("real", "integer"):
            numbers = torch.tensor([float(word or "nan") for word in words], dtype=torch.float64)
            known = numbers[seen]
            values[name] = ((numbers - known.mean()) / known.std()).nan_to_num().float()
            groups[name] = pc.Real(**{k: tuple(v) if isinstance(v, list) else v for k, v in arguments.items()})
        else:
            labels = sorted({word for word in words if word})
            codes = torch.tensor([labels.index(word) if word else 0 for word in words])
            binary = len(labels) == 2
            values[name] = codes.float() if binary else codes
            groups[name] = pc.Binary() if binary else pc.Categorical(len(labels))
        masks[name] = seen
    return groups, pc.Data(values, masks)


def model_of(groups: dict[str, pc.Family], seed: int) -> pc.JointModel:
    torch.manual_seed(seed)
    return pc.JointModel({n: pc.Conditional(family, pc.networks.mlp(groups, n)) for n, family in groups.items()})


def run(folder: Path, table: str, rate: float, seed: int, updates: int, arguments: dict) -> dict:
    """Learn and sample; what came of it."""
    groups, data = prepared(folder, table, arguments)
    reals = [name for name, family in groups.items() if isinstance(family, pc.Real)]
    learner = pc.Learner(model_of(groups, seed), data, learning_rate=rate, seed=seed)
    found: dict = {"table": table, "rate": rate, "seed": seed, "updates": updates, "real": arguments}
    began, far = time.perf_counter(), 0.0
    try:
        for info in learner.run(updates, progress=False):
            if info.step % 50 == 0:
                far = max(far, *(float(learner.batch.state[name].abs().max()) for name in reals))
    except pc.NonFiniteError as error:
        return found | {"diverged": True, "error": str(error), "step": error.step, "far_in_learning": far}
    found |= {"seconds": round(time.perf_counter() - began), "far_in_learning": far}
    model = learner.averaged
    for what, options in (("chain", {"sweeps": 200, "regeneration": 0}), ("tours", {})):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of imprecise answers: this asks for wild ones
            try:
                drawn = pc.sample(model, rows=500, seed=seed, **options)
            except (pc.NonFiniteError, pc.InputError) as error:
                found |= {f"far_in_{what}": float("inf"), "error": str(error)}
                continue
        found[f"far_in_{what}"] = max(_farthest(drawn[name]) for name in reals)
        found[f"spread_in_{what}"] = max(float(drawn[name].float().std()) for name in reals)
    found["diverged"] = not all(found[f"far_in_{what}"] <= FAR for what in ("chain", "tours"))
    return found


def _farthest(value: torch.Tensor) -> float:
    return float(value.abs().nan_to_num(nan=torch.inf).max())


def schedule(folder: Path) -> Iterator[tuple[str, float, int]]:
    """Tables, rates and seeds, those first that tell most."""
    schema = json.loads((folder / "schema.json").read_text())
    tables = sorted(schema, key=lambda table: schema[table]["rows"])
    for seed, rate in itertools.product(SEEDS, RATES):
        for table in tables:
            yield table, rate, seed


def done(out: Path) -> list[dict]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def show(out: Path) -> None:
    """Print the runs of the file as a table."""
    print("| table | rate | seed | diverged | at step | farthest in learning | chain | tours | spread chain | tours |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for each in sorted(done(out), key=lambda each: (each["table"], each["rate"], each["seed"])):
        numbers = [
            each.get(key, float("nan"))
            for key in ("far_in_learning", "far_in_chain", "far_in_tours", "spread_in_chain", "spread_in_tours")
        ]
        end = each.get("step", "")
        print(
            f"| {each['table']} | {each['rate']:g} | {each['seed']} | {'yes' if each['diverged'] else 'no'} | {end} |",
            end="",
        )
        print("".join(f" {number:.3g} |" for number in numbers))
    found = done(out)
    print(f"\n{sum(each['diverged'] for each in found)} of {len(found)} runs diverged")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, help="folder of the tables and schema.json")
    parser.add_argument("--out", type=Path, default=Path("runs/defaults_of_real.jsonl"), help="one line per run")
    parser.add_argument("--updates", type=int, default=20_000)
    parser.add_argument("--only", nargs="*", default=[], help="tables, if not all")
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--real", type=json.loads, default={}, help="arguments of Real, as JSON")
    parser.add_argument("--show", action="store_true", help="print the table, run nothing")
    options = parser.parse_args()
    if options.show:
        show(options.out)
        return
    torch.set_num_threads(1)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    before = {(each["table"], each["rate"], each["seed"]) for each in done(options.out)}
    for table, rate, seed in schedule(options.tables):
        if (table, rate, seed) in before or seed not in options.seeds or (options.only and table not in options.only):
            continue
        found = run(options.tables, table, rate, seed, options.updates, options.real)
        with options.out.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
