"""The comparison of section 5.5: VAE, symmetric equilibrium learning and ours, on the same conditionals.

Each training is a run, named by data set, method and seed (and chain length, for the trade-off between fit and
consistency). Its measures go to OUT/DATASET/RUN/found.json, its pictures next to that; the first seed also saves
its model. The table and the report are made from these files. Several commands with other --methods or --only may share
OUT; a last command with --resume and all methods then makes the report. (On a shared device, seconds include waits.)

Designs were chosen with the seeds 0 to 3 (research/comparison.md), so the first seed here is 4.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from safetensors.torch import save_file

import paracond as pc
from paracond.experiments.common.milestones import Milestones, TimeBox, train
from paracond.experiments.common.report import Report
from paracond.experiments.common.results import Metric, Outcome, choose_device, origin
from paracond.experiments.common.runner import Runner
from paracond.experiments.comparison import measures, report
from paracond.experiments.comparison.evaluation import evaluate, measure_floors
from paracond.experiments.comparison.model import make_learner, steps_of, steps_per_update
from paracond.experiments.comparison.setup import Config, Setup, check, load_setup, reduced, sets_of
from paracond.experiments.comparison.table import Run, summary
from paracond.serialization import replace_file
from paracond.training import checkpoints

MILESTONES = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # seconds of training at which to measure the first seed
TRIAL = 5000  # images for FIDs while training
LEARNED = {
    "vae": "as a VAE",
    "symmetric": "by symmetric equilibrium learning",
    "ours": "by the paper's algorithm (ours)",
    "vamp": "as a VAE whose prior is made of the codes of some training images",
}


@dataclass(kw_only=True)
class ComparisonRunner(Runner):
    """A run of the comparison. Its parts are trainings, whose records are their found.json."""

    config: Config
    runs: dict[str, tuple[Setup, Run]]
    usual_lengths: dict[str, float]
    floors: list[Metric] = field(default_factory=list)
    numbers: dict[Run, dict] = field(default_factory=dict)

    def recall(self, name: str) -> bool:
        setup, run = self.runs[name]
        path = setup.folder(run) / "found.json"
        if path.is_file():
            self.numbers[run] = json.loads(path.read_text())
        return path.is_file()

    def measure(self, name: str, part: Callable[[], dict]) -> None:
        self.numbers[self.runs[name][1]] = part()

    def write(self) -> Outcome:
        self.metrics = summary(self.numbers, self.usual_lengths) + self.floors
        runs = {name: self.numbers[run] for name, (_, run) in self.runs.items() if run in self.numbers}
        self.details |= made_on(self.numbers) | {"runs": runs}
        return super().write()

    def page(self, outcome: Outcome) -> Report:
        done = len(self.numbers) == len(self.runs)
        figures = report.figures(self.config.out, self.numbers, self.usual_lengths, TRIAL) if done else []
        return report.page(heading(self.config, self.numbers), outcome, self.numbers, figures)


def main(config: Config) -> Outcome:
    began = time.perf_counter()
    check(config)
    config = reduced(config)
    setups = [load_setup(config, name) for name in sets_of(config)]
    runs = {f"{run.dataset} {run.name}": (setup, run) for setup in setups for run in setup.runs()}
    for setup, run in runs.values():
        setup.check_saved(run)
    runner = ComparisonRunner(
        name="compare",
        title=report.TITLE,
        about="",
        config=config,
        device=choose_device(config.device),
        began=began,
        details={"designs": {setup.name: str(setup.design) for setup in setups}},
        runs=runs,
        usual_lengths={setup.name: setup.design.chain_length for setup in setups},
    )
    for setup in setups if not config.quick else ():
        runner.floors += floors_of(setup)
    return runner.run({name: partial(train_and_measure, *pair, runner) for name, pair in runs.items()}, timed=True)


def made_on(numbers: dict[Run, dict]) -> dict[str, str]:
    """Commits, hardware and torch versions of the runs, which may differ from those of the report."""
    origins = [each["origin"] for each in numbers.values()]
    return {name: ", ".join(sorted({str(o[name]) for o in origins})) for name in ("commit", "hardware", "torch")}


def heading(config: Config, numbers: dict[Run, dict]) -> str:
    """The first paragraph of the report."""
    seeds = f"{config.seeds} seeds each, mean and standard deviation over seeds"
    seeds = seeds if config.seeds > 1 else "one seed each"
    ways = [how for method, how in LEARNED.items() if method in config.methods]
    where = {f"{n['origin']['hardware']} (commit {n['origin']['commit']})" for n in numbers.values()}
    text = (
        "Networks p(x | z, c) and p(z | x, c) of an image x and its code z given c, learned in "
        f"{len(ways)} way{'s' * (len(ways) > 1)}: {', '.join(ways)}; {seeds}. "
        f"Trained and measured on {', '.join(sorted(where))}."
    )
    return text + (" A quick run: models hardly learn, and chains are shorter than stated." if config.quick else "")


def floors_of(setup: Setup) -> list[Metric]:
    """Measures of real images, saved in OUT/DATASET/floors.json."""
    path = setup.config.out / setup.name / "floors.json"
    if not (setup.config.resume and path.is_file()):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps([asdict(metric) for metric in measure_floors(setup)], indent=1).encode())
    return [Metric(**saved) for saved in json.loads(path.read_text())]


# --- one run ----------------------------------------------------------------------------------------------------


def train_and_measure(setup: Setup, run: Run, box: TimeBox) -> dict:
    """Train a run, measure it, and save its measures and pictures."""
    print(f"{run.dataset} {run.name}", flush=True)
    folder, settings = setup.folder(run), setup.settings(run)
    model, milestones = trained(setup, run, folder, box)
    numbers, pictures = evaluate(setup, run, model)
    steps = steps_per_update(run.method)  # the curve is along updates of each conditional
    curve = [point | {"updates": point["updates"] / steps} for point in milestones.points]
    numbers |= {"seconds_train": milestones.trained, "curve": curve, "settings": settings}
    numbers["origin"] = origin(setup.device)
    if setup.fid is not None:
        numbers["features"] = setup.fid.extractor.protocol
    if setup.extras(run):
        model.save(folder / "model")
    save_file({name: images.contiguous() for name, images in pictures.items()}, folder / "pictures.safetensors")
    replace_file(folder / "found.json", (json.dumps(numbers, indent=1) + "\n").encode())
    shutil.rmtree(folder / "checkpoint")
    print("  " + ", ".join(f"{k} {v:.4g}" for k, v in numbers.items() if isinstance(v, float)), flush=True)
    return numbers


def trained(setup: Setup, run: Run, folder: Path, box: TimeBox) -> tuple[pc.JointModel, Milestones]:
    config, design = setup.config, setup.design_of(run)

    def measure(model: pc.JointModel) -> dict[str, float]:
        c = measures.contexts_of(setup.pictures, TRIAL, run.seed).to(setup.device)
        states = {"limiting": measures.limiting(model, c, run.seed)}
        if run.method != "ours":
            states["random"] = measures.random_codes(model, c, run.seed, setup.prior(run))
        scores = [setup.score(name, measures.shown(model, state)) for name, state in states.items()]
        return {name: value for score in scores for name, value in score.items()}

    engine = pc.Engine(setup.device, compile=config.compile and setup.device == "cuda")
    learner = make_learner(design, setup.pictures, run.method, engine, run.seed)
    learner.engine.synchronise()
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / "settings.json", (json.dumps(setup.settings(run), indent=1) + "\n").encode())
    seconds = MILESTONES if setup.extras(run) and not config.quick else ()
    resumed = checkpoints.exists(folder / "checkpoint")
    milestones = Milestones(measure, folder / "milestones.json", seconds, resumed)  # the clock starts after the set-up
    train(learner, steps_of(design, run.method), folder / "checkpoint", box, milestones)
    return learner.averaged, milestones
