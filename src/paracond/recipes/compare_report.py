"""Figures of the comparison: the trade-off along the chain length, and the course of learning."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

NAMES = {"vae": "VAE", "symmetric": "Symmetric", "ours": "ours"}
MEASURES = {"gap": "inconsistency: nats per step", "disagreement": "disagreement of clamped and unclamped codes"}


def trade_off(lengths: Mapping[float, dict], others: Mapping[str, dict]) -> Figure:
    """FID against two measures of inconsistency; a point for every chain length, and one for every other method."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, (key, label) in zip(figure.subplots(1, 2), MEASURES.items(), strict=True):
        points = [(n, lengths[n][key], lengths[n]["limiting"]) for n in sorted(lengths)]
        axes.plot([p[1] for p in points], [p[2] for p in points], "o-", ms=4, label="ours")
        for n, x, y in points:
            axes.annotate(f"n = {n:g}", (x, y), textcoords="offset points", xytext=(4, 4), fontsize=8)
        for method in [m for m in others if m != "ours" and "limiting" in others[m]]:
            axes.plot([others[method][key]], [others[method]["limiting"]], "s", ms=6, label=NAMES[method])
        axes.set_xlabel(label)
        axes.set_ylabel("FID, limiting")
        if all(x > 0 for _, x, _ in points):
            axes.set_xscale("log")
        axes.legend(fontsize=8)
    return figure


def curves(found: Mapping[str, dict]) -> Figure:
    """FIDs against seconds of training, both ways to generate."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for axes, how in zip(figure.subplots(1, 2), ("limiting", "random"), strict=True):
        for method, numbers in found.items():
            points = [(p["seconds"], p[how]) for p in numbers.get("curve", []) if how in p]
            if how in numbers:
                points.append((numbers["seconds_train"], numbers[how]))
            if points:
                axes.plot(*zip(*points, strict=True), "o-", ms=3, label=NAMES[method])
        axes.set_xlabel("seconds of training")
        axes.set_ylabel(f"FID, {how}")
        axes.set_yscale("log")
        axes.legend(fontsize=8)
    return figure
