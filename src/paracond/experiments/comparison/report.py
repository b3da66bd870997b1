"""The report of the comparison: the paper's table, the trade-off along the chain length, learning curves, images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from safetensors.torch import load_file
from torch import Tensor

from paracond.experiments.common.pictures import grid
from paracond.experiments.common.report import Report
from paracond.experiments.common.results import Outcome
from paracond.experiments.comparison.table import (
    Run,
    beside_the_paper,
    beyond_the_paper,
    by_length,
    first_seed,
    methods_of,
)

TITLE = "Ways to learn the same two conditionals (section 5.5)"
NAMES = {"vae": "VAE", "symmetric": "Symmetric", "ours": "ours", "vamp": "VAE, VampPrior"}
COLOURS = {"vae": "C0", "symmetric": "C1", "ours": "C2", "vamp": "C3"}
MEASURES = {"gap": "inconsistency: nats per step", "disagreement": "disagreement of clamped and unclamped codes"}
Named = list[tuple[str, str, Figure]]


def page(about: str, outcome: Outcome, found: Mapping[Run, dict], figures: Named) -> Report:
    report = Report(TITLE, about)
    rows, columns = beside_the_paper(found), ["", *(NAMES[method] for method in methods_of(found))]
    if any(any(cells) for _, *cells in rows):  # a quick run has no FID
        report.section("FID: measured (the paper's)")
        report.table(columns, rows)
    for dataset in dict.fromkeys(run.dataset for run in found):
        report.section(f"{dataset}: beyond the paper's table")
        report.table(columns, beyond_the_paper(found, dataset))
    for heading, caption, figure in figures:
        report.section(heading)
        report.figure(figure, caption)
    report.section("All results")
    report.outcome(outcome)
    return report


def figures(out: Path, found: Mapping[Run, dict], usual: Mapping[str, float], trial: int) -> Named:
    """Figures of every data set. `usual`: chain lengths of ours; `trial`: number of images behind the curves."""
    made: Named = []
    seed = first_seed(found)
    for dataset in dict.fromkeys(run.dataset for run in found):
        first = {r.method: n for r, n in found.items() if (r.dataset, r.seed, r.length) == (dataset, seed, None)}
        lengths = by_length(found, dataset, usual[dataset])
        if lengths and all("limiting" in numbers for numbers in lengths.values()):
            caption = (
                "Ours, with its chain length n at every point, and the other methods. All make as many updates; ours "
                "sees 2/n of the examples. With n = 1, p(z | x, c) learns nothing: it has only its own fresh draws."
            )
            made.append((f"{dataset}: fit and consistency", caption, trade_off(lengths, first)))
        if any(numbers.get("curve") for numbers in first.values()):
            caption = f"FID of {trial} images along the training, first seed."
            made.append((f"{dataset}: learning", caption, curves(first)))
        made += samples(out, seed, dataset, list(first))
    return made


def trade_off(lengths: Mapping[float, dict], others: Mapping[str, dict]) -> Figure:
    """FID against two measures of inconsistency; a point for every chain length, and one for every other method."""
    figure = Figure(figsize=(9.5, 4), layout="constrained")
    for axes, (key, label) in zip(figure.subplots(1, 2), MEASURES.items(), strict=True):
        points = [(n, lengths[n][key], lengths[n]["limiting"]) for n in sorted(lengths)]
        rivals = {m: (others[m][key], others[m]["limiting"]) for m in others if m != "ours" and "limiting" in others[m]}
        axes.plot([p[1] for p in points], [p[2] for p in points], "o-", ms=4, color=COLOURS["ours"], label="ours")
        for n, x, y in points:
            axes.annotate(f"{n:g}", (x, y), textcoords="offset points", xytext=(5, 4), fontsize=8)
        for method, (x, y) in rivals.items():
            axes.plot([x], [y], "s", ms=6, color=COLOURS[method], label=NAMES[method])
        axes.margins(0.15)
        if all(x > 0 for x in [p[1] for p in points] + [x for x, _ in rivals.values()]):
            logarithmic(axes, "x")
        logarithmic(axes, "y")
        axes.set_xlabel(label)
        axes.set_ylabel("FID, limiting")
        axes.legend(fontsize=8)
    return figure


def curves(found: Mapping[str, dict]) -> Figure:
    """FIDs of both ways to generate, against updates and against seconds of training."""
    figure = Figure(figsize=(9.5, 6.4), layout="constrained")
    labels = {"updates": "updates of each conditional", "seconds": "seconds of training"}
    for row, (key, label) in zip(figure.subplots(2, 2), labels.items(), strict=True):
        for axes, how in zip(row, ("limiting", "random"), strict=True):
            for method, numbers in found.items():
                points = [(p[key], p[how]) for p in numbers.get("curve", []) if how in p]
                if points:
                    axes.plot(*zip(*points, strict=True), "o-", ms=3, color=COLOURS[method], label=NAMES[method])
            axes.set_xlabel(label)
            axes.set_ylabel(f"FID, {how}")
            logarithmic(axes, "x")
            logarithmic(axes, "y")
            if axes.lines:
                axes.legend(fontsize=8)
    return figure


def logarithmic(axes: Axes, which: str) -> None:
    """Make an axis logarithmic with a few round numbers."""
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))  # equally spaced numbers on a short axis
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def samples(out: Path, seed: int, dataset: str, methods: list[str]) -> Named:
    """Images of the methods whose pictures are in OUT."""
    rows: dict[str, Tensor] = {}
    files = {method: out / dataset / f"{method}-{seed}" / "pictures.safetensors" for method in methods}
    for method in (method for method in methods if files[method].is_file()):
        saved = load_file(files[method])
        rows.setdefault("real", saved["real"][:16])
        kinds = [how for how in ("reconstruction", "random", "limiting") if how in saved]
        rows |= {f"{NAMES[method]}, {how}": saved[how][:16] for how in kinds}
    if not rows:
        return []
    inches = 0.5 if dataset == "fashion" else 0.8
    figure = grid(list(rows.values()), names=list(rows), inches=inches)
    caption = "First images of the first seed, not selected. A column has one c; reconstructions are of its real image."
    return [(f"{dataset}: images", caption, figure)]
