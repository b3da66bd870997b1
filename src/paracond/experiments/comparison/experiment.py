"""The comparison of section 5.5 on equal terms: VAE, symmetric equilibrium learning and ours, on the same conditionals.

Every training is a run of its own, named by data set, method and seed (ours also by chain length, for the trade-off
between fit and consistency). A run is trained, measured once and kept as OUT/DATASET/RUN/found.json, that of the first
seed with its RUN/model; the page and the table are made from these files. So work comes in time boxes: `--minutes` ends
one, `--resume` does what is left, if it was begun with the same settings (RUN/settings.json). Several commands may
share OUT, each with other --methods or --only; one more, with --resume and all of them, then makes the page. (On a
shared device seconds are of that.)

The designs were chosen by trainings with the seeds 0 to 3 (RESULTS), so the seeds here begin at four.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from dataclasses import asdict, replace
from pathlib import Path

from safetensors.torch import save_file

import paracond as pc
from paracond.experiments.common.results import Metric, Outcome, origin, plain
from paracond.experiments.comparison import measures, report
from paracond.experiments.comparison.found import measured, measured_floors
from paracond.experiments.comparison.model import make_learner, steps_of, steps_per_update
from paracond.experiments.comparison.session import (
    Config,
    Session,
    check,
    check_kept,
    design_of,
    fewer,
    folder_of,
    open_session,
    runs_of,
    sets_of,
    settings_of,
)
from paracond.experiments.comparison.table import Run, summary
from paracond.experiments.images.model import Milestones, Unfinished, train
from paracond.serialization import replace_file
from paracond.training import checkpoints

MOMENTS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # seconds of training at which the first seed is measured
TRIAL = 5000  # images for FIDs while training
LEARNED = {
    "vae": "as a VAE",
    "symmetric": "by symmetric equilibrium learning",
    "ours": "by the paper's algorithm (ours)",
    "vamp": "as a VAE whose prior is made of the codes of some training images",
}


def main(config: Config) -> Outcome:
    began = time.perf_counter()
    end = math.inf if config.minutes is None else time.monotonic() + 60 * config.minutes
    check(config)
    config = fewer(config)
    sessions = [open_session(config, name) for name in sets_of(config)]
    for session in sessions:  # before anything is learned
        for run in runs_of(session):
            check_kept(session, run)
    found: dict[Run, dict] = {}
    floors = []
    for session in sessions:
        floors += [] if config.quick else floors_of(session)
        found |= {run: of_run(session, run, end) for run in runs_of(session)}
    usual = {session.name: session.design.chain_length for session in sessions}
    details = made_on(found) | {
        "designs": {session.name: str(session.design) for session in sessions},
        "runs": {f"{run.dataset} {run.name}": numbers for run, numbers in found.items()},
    }
    metrics, seconds = summary(found, usual) + floors, time.perf_counter() - began
    outcome = Outcome("compare", metrics, seconds, plain(config), sessions[0].device, details)
    outcome.write(config.out)
    figures = report.figures(config.out, found, usual, TRIAL)
    report.page(heading(config, found), outcome, found, figures).write(config.out)
    return outcome


def made_on(found: dict[Run, dict]) -> dict[str, str]:
    """Where the runs were: the numbers are theirs, wherever their table is made."""
    origins = [numbers["origin"] for numbers in found.values()]
    return {name: ", ".join(sorted({str(o[name]) for o in origins})) for name in ("commit", "hardware", "torch")}


def heading(config: Config, found: dict[Run, dict]) -> str:
    seeds = f"{config.seeds} seeds each, mean and standard deviation over seeds"
    seeds = seeds if config.seeds > 1 else "one seed each"
    ways = [how for method, how in LEARNED.items() if method in config.methods]
    where = {f"{n['origin']['hardware']} (commit {n['origin']['commit']})" for n in found.values()}
    text = (
        "Networks p(x | z, c) and p(z | x, c), of an image x and its code z given what is known of it, c, learned in "
        f"{len(ways)} way{'s' * (len(ways) > 1)}: {', '.join(ways)}; {seeds}. "
        f"Trained and measured on {', '.join(sorted(where))}."
    )
    return text + (" A quick run: nothing is learned, and chains are shorter than it says." if config.quick else "")


def floors_of(session: Session) -> list[Metric]:
    """What real images have: their FID, and what half of one tells of its class by the estimator of all methods."""
    path = session.config.out / session.name / "floors.json"
    if not (session.config.resume and path.is_file()):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps([asdict(metric) for metric in measured_floors(session)], indent=1).encode())
    return [Metric(**kept) for kept in json.loads(path.read_text())]


# --- one run ----------------------------------------------------------------------------------------------------


def of_run(session: Session, run: Run, end: float) -> dict:
    """What was found of a run, in this time box or a former one."""
    folder = folder_of(session, run)
    if (folder / "found.json").is_file():
        return json.loads((folder / "found.json").read_text())
    left = (end - time.monotonic()) / 60
    if left <= 0:
        raise Unfinished(f"the time is over before {run.dataset} {run.name}; continue with --resume")
    print(f"{run.dataset} {run.name}", flush=True)
    settings = settings_of(session, run)
    model, milestones = trained(session, run, folder, left)
    numbers, pictures = measured(session, run, model)
    curve = per_conditional(milestones.found, run)
    numbers |= {"seconds_train": milestones.trained, "curve": curve, "settings": settings}
    numbers["origin"] = origin(session.device)
    if session.fid is not None:
        numbers["features"] = session.fid.extractor.protocol
    if session.looks_closer(run):
        model.save(folder / "model")
    save_file({name: images.contiguous() for name, images in pictures.items()}, folder / "pictures.safetensors")
    replace_file(folder / "found.json", (json.dumps(numbers, indent=1) + "\n").encode())
    shutil.rmtree(folder / "checkpoint")
    print("  " + ", ".join(f"{k} {v:.4g}" for k, v in numbers.items() if isinstance(v, float)), flush=True)
    return numbers


def per_conditional(curve: list[dict], run: Run) -> list[dict]:
    """A learning curve, with updates of each conditional in the place of steps of the learner."""
    return [point | {"updates": point["updates"] / steps_per_update(run.method)} for point in curve]


def trained(session: Session, run: Run, folder: Path, minutes: float) -> tuple[pc.JointModel, Milestones]:
    config, design = session.config, design_of(session, run)

    def measure(model: pc.JointModel) -> dict[str, float]:
        c = measures.conditions_of(session.pictures, TRIAL, run.seed).to(session.device)
        made = {"limiting": measures.limiting(model, c, run.seed)}
        if run.method != "ours":
            made["random"] = measures.random_codes(model, c, run.seed, session.prior(run))
        scores = [session.score(name, measures.shown(model, state)) for name, state in made.items()]
        return {name: value for score in scores for name, value in score.items()}

    moments = MOMENTS if session.looks_closer(run) and not config.quick else ()
    milestones = Milestones(measure, folder / "milestones.json", moments)
    engine = pc.Engine(session.device, compile=config.compile and session.device == "cuda")
    learner = make_learner(design, session.pictures, run.method, engine, run.seed)
    learner.engine.synchronise()
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / "settings.json", (json.dumps(settings_of(session, run), indent=1) + "\n").encode())
    milestones.start(checkpoints.exists(folder / "checkpoint"))  # now: what was made so far is no training
    box = replace(config, minutes=None if math.isinf(minutes) else minutes)
    train(learner, steps_of(design, run.method), folder / "checkpoint", box, milestones)
    if moments and (not milestones.found or milestones.found[-1]["updates"] < learner.step_count):
        milestones.take(learner)  # the end, by as many images as the way there
    return learner.averaged, milestones
