"""How long do an update and 30,000 images take on this GPU, and how long must an update take at least?

    python benchmarks/updates.py mnist|fashion|faces --data DIR [--model models/fashion] [--out results]

    update_ms           an update on the fast engine, with its share of completion and replacement of rows
    update_ms_eager     the same in plain eager float32
    update_ms_floor     max(operations / rate of a large bfloat16 product, bytes / rate of a large copy)
    update_speedup      update_ms_eager / update_ms                              (mnist, fashion)
    update_over_floor   update_ms / update_ms_floor                              (mnist, fashion)
    update_ms_before    completion before training instead of in parallel        (faces)
    update_ms_warm      2 completion steps instead of 10, from cached values     (faces)
    update_ms_own       with the model's own settings                            (faces)
    seconds_30k_images, minutes_30k_images   100 sweeps of 30,000 images, until they are on the host

Updates of faces have batch 64 and the paper's chain length 16 and 10 completion steps, except update_ms_own. torch
counts the operations. Bytes: every convolution and linear layer reads its input and writes its output once forward;
backward it reads the output's gradient twice and its input once, and writes the input's gradient (bfloat16). Every
parameter is read and written with its gradient, two moments and its moving average (float32). All else could be fused.
The device must be idle otherwise.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from stopwatch import milliseconds
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import paracond as pc
from paracond.data import InputError, State
from paracond.datasets.faces import load, of_split
from paracond.experiments.common.images import shown
from paracond.experiments.common.results import Metric, Outcome, choose_device, portable
from paracond.experiments.faces import experiment as faces
from paracond.experiments.faces import model as face_models
from paracond.experiments.faces import tasks
from paracond.experiments.faces.runner import hold_out
from paracond.experiments.images import fashion, mnist
from paracond.experiments.images import model as image_models

GOALS = {
    "mnist": {"update_speedup": 3.0, "update_over_floor": 4.0},
    "fashion": {"update_speedup": 3.0, "update_over_floor": 4.0, "seconds_30k_images": 20.0},
    "faces": {"update_ms": 6.0, "minutes_30k_images": 3.0},
}
IMAGES = {"mnist": mnist.EXPERIMENT, "fashion": fashion.EXPERIMENT}
COUNT = 30_000  # generated images
LAYERS = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)
BYTES_PER_PARAMETER = 4 * (2 + 2 + 4 + 2)  # itself, its gradient, two moments, its average: read and written


@dataclass(frozen=True)
class Work:
    """Operations and bytes of one update, averaged over the groups."""

    operations: float
    bytes: float


def count_work(model: pc.JointModel, batch_size: int) -> Work:
    state = pc.initializers.initial_state(model, batch_size, model.generator(0))
    works = [_count(model, name, state) for name in model.names]
    total = len(works)
    return Work(sum(w.operations for w in works) / total, sum(w.bytes for w in works) / total)


def _count(model: pc.JointModel, name: str, state: State) -> Work:
    moved = 0

    def note(module, inputs, output) -> None:
        nonlocal moved
        moved += 3 * 2 * (inputs[0].numel() + output.numel())

    layers = [m for m in model.conditional(name).modules() if isinstance(m, LAYERS)]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    with FlopCounterMode(display=False) as counter:
        model(name, state).log_prob(state[name]).sum().backward()
    for hook in hooks:
        hook.remove()
    model.zero_grad()
    parameters = sum(p.numel() for p in model.conditional(name).parameters())
    return Work(counter.get_total_flops(), moved + BYTES_PER_PARAMETER * parameters)


def rates() -> tuple[float, float]:
    """Operations and bytes per second of this device: a large bfloat16 product, a large copy."""
    a, b = torch.randn(2, 8192, 8192, device="cuda", dtype=torch.bfloat16)
    product = milliseconds(lambda: a @ b, 30, warm=3)
    source = torch.empty(2**30, device="cuda", dtype=torch.uint8).random_()
    target = torch.empty_like(source)
    copy = milliseconds(lambda: target.copy_(source), 30, warm=3)
    return 2 * 8192**3 / (product / 1e3), 2 * 2**30 / (copy / 1e3)


@dataclass(frozen=True)
class UpdateTime:
    """Milliseconds per update, including completion and replacement of rows."""

    fast: float
    eager: float
    floor: float
    set_up: float  # seconds until the fast engine was warm


def fast_update(make: Callable[[pc.Engine], pc.Learner], compile: bool) -> tuple[float, float]:
    """Milliseconds per update on the fast engine, and seconds until it was warm."""
    began = time.perf_counter()
    fast = make(pc.Engine("cuda", "graphs", compile=compile))
    for _ in range(12 * len(fast.model.names)):  # until every program is recorded
        fast.step()
    fast.engine.synchronise()
    set_up = time.perf_counter() - began
    return milliseconds(fast.step, 600, warm=60), set_up


def update_times(make: Callable[[pc.Engine], pc.Learner], compile: bool) -> UpdateTime:
    """The same updates on the fast engine and in plain eager float32, one after the other."""
    fast_ms, set_up = fast_update(make, compile)
    eager = make(pc.Engine("cuda", "eager"))
    eager_ms = milliseconds(eager.step, 90, warm=9)
    work = count_work(eager.model, eager.batch_size)
    operations, moved = rates()
    floor = 1e3 * max(work.operations / operations, work.bytes / moved)
    return UpdateTime(fast_ms, eager_ms, floor, set_up)


# --- the three models -------------------------------------------------------------------------------------------


def time_images(design: image_models.Design, train: pc.Data, model: pc.JointModel, compile: bool) -> list[Metric]:
    """Updates of a design and generation by a model, of MNIST or Fashion-MNIST."""
    times = update_times(lambda engine: image_models.make_learner(design, train, engine, 0), compile)
    classes = train.state["c"][:COUNT].to(model.device)
    seconds = timed(lambda: shown(model, image_models.generate(model, classes)))
    about = "100 sweeps, until the images are on the host"
    return [
        *metrics_of(times, f"batch {design.batch_size}, set-up {times.set_up:.0f} s"),
        Metric("update_speedup", times.eager / times.fast, "higher", about="eager / fast"),
        Metric("update_over_floor", times.fast / times.floor, "lower", about="fast / floor"),
        Metric("seconds_30k_images", seconds, "lower", about=about),
    ]


def time_faces(design: face_models.Design, train: pc.Data, model: pc.JointModel, compile: bool) -> list[Metric]:
    """Updates at batch 64 with the paper's chain and completion, and with the two ideas of appendix D; generation."""
    paper = replace(design, batch_size=64, chain_length=(16.0, 16.0), completion_steps=10, parallel=True, warm=())
    warm = replace(paper, completion_steps=2, warm=("s", "c", "y", "z"), mirrored=False, shifts=0)

    def maker(d: face_models.Design) -> Callable[[pc.Engine], pc.Learner]:
        return lambda engine: face_models.make_learner(d, train, engine, 0)

    def update(name: str, d: face_models.Design, about: str) -> Metric:
        return Metric(name, fast_update(maker(d), compile)[0], "lower", about=about)

    times = update_times(maker(paper), compile)
    known = train.state["c"][train.mask["c"].all(1)]
    rows = torch.randint(len(known), (COUNT,), generator=torch.Generator().manual_seed(0))
    attributes = known[rows].to(model.device)
    return [
        *metrics_of(times, "batch 64, expected chain length 16, 10 completion steps"),
        update("update_ms_before", replace(paper, parallel=False), "completion before training, not in parallel"),
        update("update_ms_warm", warm, "2 completion steps instead of 10, from cached values"),
        update("update_ms_own", design, f"batch {design.batch_size}, the settings of this model"),
        Metric(
            "minutes_30k_images",
            timed(lambda: tasks.portraits(model, attributes)) / 60,
            "lower",
            about="100 sweeps, images back on the host",
        ),
    ]


def timed(draw: Callable[[], Tensor]) -> float:
    """Seconds until the drawn images are on the host."""
    began = time.perf_counter()
    draw().cpu()
    return time.perf_counter() - began


def metrics_of(times: UpdateTime, about: str) -> list[Metric]:
    counted = "arithmetic and bandwidth, counted and at measured rates"
    return [
        Metric("update_ms", times.fast, "lower", about=about),
        Metric("update_ms_eager", times.eager, "lower", about="the same in plain eager float32, same run"),
        Metric("update_ms_floor", times.floor, "lower", about=counted),
    ]


def with_goals(name: str, metrics: list[Metric]) -> list[Metric]:
    return [replace(metric, goal=GOALS[name].get(metric.name)) for metric in metrics]


def measured(name: str, data: Path | None, folder: Path, preset: str, compile: bool) -> tuple[list[Metric], dict]:
    """The metrics of a data set, and the design that was timed."""
    model = pc.JointModel.load(folder).to("cuda")
    if name == "faces":
        design = faces.PRESETS[preset]
        train, _ = hold_out(of_split(load(data), "train", design.segmentation))
        check(model, face_models.variables_of(design)["x"], folder)
        return time_faces(design, train, model, compile), asdict(design)
    settings, train = IMAGES[name].presets[preset], IMAGES[name].load("train", folder=data)
    check(model, image_models.variables_of(settings, binary=name == "mnist")["x"], folder)
    return time_images(settings, train, model, compile), asdict(settings)


def check(model: pc.JointModel, wanted: pc.Family, folder: Path) -> None:
    """Refuse a model of other images."""
    found = model.variables.get("x", "missing")
    if not isinstance(found, type(wanted)) or found.event_shape != wanted.event_shape:
        raise InputError(f"{folder} is no model of these images: 'x' is {found}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=list(GOALS))
    parser.add_argument("--data", type=Path, help="folder with the IDX files or the faces")
    parser.add_argument("--model", type=Path, help="the saved model that generates (default: models/NAME)")
    parser.add_argument("--preset", choices=["best", "paper"], default="best", help="the settings of the updates")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="default: all but faces")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of updates_NAME.json")
    options = parser.parse_args(arguments)
    compile = options.name != "faces" if options.compile is None else options.compile
    began = time.perf_counter()
    folder = options.model or Path("models") / options.name
    try:
        choose_device("cuda")
        metrics, design = measured(options.name, options.data, folder, options.preset, compile)
    except InputError as error:
        raise SystemExit(str(error)) from None
    config = {"model": portable(folder), "preset": options.preset, "compile": compile}
    rows, seconds = with_goals(options.name, metrics), time.perf_counter() - began
    outcome = Outcome(f"updates_{options.name}", rows, seconds, config, "cuda", {"design": design})
    outcome.show()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"updates_{options.name}.json"
    path.write_text(json.dumps(outcome.record(), indent=1) + "\n")
    print(f"results: {path}")


if __name__ == "__main__":
    main()
