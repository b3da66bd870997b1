"""The pictures and the report of the demo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

import paracond as pc
from paracond.experiments.common.runner import Runner

TOP = torch.arange(64) < 32


@dataclass
class Answers:
    """Answers of one trained model: numbers and pictures for the report."""

    accuracy: float
    half_accuracy: float
    diversity: list[float]  # of the generated images, by class, relative to real ones
    drawn_diversity: list[float]  # the same of draws of x, with their pixel noise
    usage: pc.diagnostics.LatentUsage
    generated: Tensor  # [10 * generated, 64]
    completed: Tensor  # [test, 64]
    half_probabilities: Tensor  # [test, 10]
    notes: list[str]


def show(runner: Runner, full: Answers, tenth: Answers) -> None:
    """The sections of the report."""
    runner.show(
        "Generated per class, and completed from half",
        "Above: real digits beside generated ones, a row per class (the class is clamped, image and latents are "
        "redrawn 100 times in turn). Below: the top half is clamped, all else is redrawn; rows are the visible half, "
        "the mean completion and the true image, under the most probable class, red if wrong.",
        picture(full),
    )
    listed = ", ".join(f"{k}: {ratio:.2f}" for k, ratio in enumerate(full.diversity))
    runner.show("Do generated digits vary like real ones?", f"Pixel deviation, generated / real, by class: {listed}.")
    runner.show(
        "With 90% of the labels missing",
        "The same pictures from the model trained with a tenth of the labels; "
        f"accuracy {tenth.accuracy:.3f} on whole images.",
        picture(tenth),
    )
    runner.show(
        "Are the latents used?",
        "Information of each latent about the image, before and after a redraw. A collapsed model has no active "
        f"latent and draws one picture per class. {full.usage!r}",
        _usage(full),
    )
    runner.show("Did the chains mix?", "; ".join(full.notes))
    runner.show("Did they mix with a tenth of the labels?", "; ".join(tenth.notes))


def picture(answers: Answers) -> Figure:
    """Real digits beside generated ones; under them, digits completed from their top half."""
    figure = Figure(figsize=(9, 6.4), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=[4.4, 2])
    _gallery([figure.add_subplot(grid[0, k]) for k in range(2)], answers)
    _completions(figure.add_subplot(grid[1, :]), answers)
    return figure


def _gallery(pair: Sequence[Axes], answers: Answers, columns: int = 10) -> None:
    real = pc.datasets.digits()
    shown = {
        "real": torch.stack([real.state["x"][real.state["c"] == k][:columns] for k in range(10)]),
        "generated": answers.generated.view(10, -1, 64)[:, :columns],
    }
    for axes, (title, pictures) in zip(pair, shown.items(), strict=True):
        _show(axes, pictures)
        axes.set_title(title)


def _completions(axes: Axes, answers: Answers, columns: int = 16) -> None:
    test = pc.datasets.digits("test")
    x, c = test.state["x"][:columns], test.state["c"][:columns]
    decided = answers.half_probabilities[:columns].argmax(1)
    _show(axes, torch.stack([torch.where(TOP, x, 0.5), answers.completed[:columns], x]))
    for k in range(columns):
        axes.text(9 * k + 4, -2, str(int(decided[k])), ha="center", color="black" if decided[k] == c[k] else "red")


def _show(axes: Axes, pictures: Tensor) -> None:
    """[rows, columns, 64] as one image, with a margin of one pixel."""
    padded = nn.functional.pad(pictures.clamp(0, 1).unflatten(2, (8, 8)), (0, 1, 0, 1))
    axes.imshow(padded.permute(0, 2, 1, 3).flatten(2).flatten(0, 1).numpy(), cmap="gray_r", vmin=0, vmax=1)
    axes.axis("off")


def _usage(answers: Answers) -> Figure:
    information, read_back = answers.usage.information.cpu(), answers.usage.read_back.cpu()
    order = information.argsort(descending=True)
    figure = Figure(figsize=(9, 2.6))
    axes = figure.subplots()
    axes.bar(range(len(order)), information[order].tolist(), 0.9, label="information", alpha=0.6)
    axes.plot(range(len(order)), read_back[order].tolist(), "k.", label="read back", markersize=4)
    axes.set_xlabel("latent coordinate, sorted")
    axes.set_ylabel("nats")
    axes.legend()
    return figure
