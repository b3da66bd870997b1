"""The demo: one model of digits, asked in every direction.

Groups: x, an image of 8 x 8 grey values; c, its class; z, binary latents that are never observed. The network of c
reads only x. One training on four fifths of scikit-learn's digits gives a model that

- classifies whole images: arg max of p(c | x), by one pass of one network;
- classifies and completes images from their top half: clamp those 32 pixels, run the chain;
- generates images of a given class: clamp c, run the chain.

Training has two phases. First all conditionals learn together; some images show only one half. Then p(c | x) learns
alone from images that mostly show one half. Why: given the top x_t, the chain alternates x_b, z ~ q(. | x_t, c) and
c ~ p(c | x_t, x_b). Let the network of c learn from real x_t with their true c, completed by x_b ~ q(. | x_t, c). Its
optimum p(c | x_t, x_b) is proportional to p(c | x_t) q(x_b | x_t, c), so both conditionals belong to one joint, and the
chain's marginal of c is p(c | x_t) of the data, even if q completes badly. Completion (step I) makes such examples. So
the second phase has chain length 1, which updates c on examples as they were completed, and q is frozen.

A second model has 90% of the labels missing. It has the first phase only, since c would learn its own guesses in the
second. The control is a network of the size of p(c | x), trained only to classify from the top half, with the same
noise on grey values and without. As in the paper (section 5.3), a generated image is the mean of p(x | c, z) at the
last z of its chain, which shows a collapse of latents. Draws of x are measured too. research/digits.md has the trials.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import paracond as pc
from paracond.diagnostics import latent_usage
from paracond.experiments.common.config import ExperimentConfig
from paracond.experiments.common.parallel import run_side_by_side
from paracond.experiments.common.results import Metric, Outcome, choose_device
from paracond.experiments.common.runner import Runner
from paracond.experiments.digits.report import TOP, Answers, picture, show
from paracond.training.running_batch import LiteralForm

SHORT = pc.Regeneration(rate=0.05, warmup=10)  # given half of an image, little is left to forget
HALVES = torch.stack([TOP, ~TOP, torch.arange(64) % 8 < 4, torch.arange(64) % 8 >= 4])


@dataclass(frozen=True)
class Config(ExperimentConfig):
    """The demo: one model classifies, completes and generates digits, also with few labels."""

    out: Path = Path("runs/demo")
    latents: int = 96
    hidden: int = 384
    """units in the networks of x and z"""
    hidden_class: int = 1024
    """units in the network of c, and in the control"""
    updates: int = 6_000
    """updates of all conditionals"""
    updates_class: int = 2_000
    """later updates of p(c | x) alone; none if labels are missing"""
    batch_size: int = 256
    chain_length: float = 3.0
    completion_steps: int = 2
    completion_steps_few_labels: int = 4
    """the same with 90% of the labels missing, where classes are completed too"""
    completion_steps_class: int = 3
    """the same while p(c | x) learns alone"""
    learning_rate: float = 6e-3
    last_rate: float = 1e-3
    """the learning rate at the end"""
    last_rate_few_labels: float = 1e-5
    """the same with 90% of the labels missing"""
    learning_rate_class: float = 1.2e-2
    """learning rate while p(c | x) learns alone; it falls to nearly zero"""
    noise: float = 0.12
    """standard deviation of the noise on grey values that train the network of c and the control"""
    widest: float = 0.12
    """largest standard deviation of a pixel given class and latents; lower values make latents carry more"""
    copies: int = 40
    """number of copies of the training images, each with other parts hidden"""
    hidden_halves: float = 0.3
    """share of the training images with only one half visible"""
    hidden_halves_few_labels: float = 0.2
    """the same with 90% of the labels missing"""
    hidden_halves_class: float = 0.85
    """the same while p(c | x) learns alone"""
    shift_few_labels: float = 0.7
    """if labels are missing, every copy of an image moves by up to this many pixels each way"""
    top_halves: float = 0.85
    """share of top halves among these; bottom, left and right halves have equal parts of the rest"""
    labelled_share: float = 0.37
    """if labels are missing, repeat labelled examples until they make up this share"""
    tours: int = 48
    """tours of the chains that complete each top half"""
    generated: int = 100
    """number of images per class"""


def make_model(config: Config) -> pc.JointModel:
    pixels = pc.Real(64, scale="element", initial_scale=0.05, floor=0.01, ceiling=config.widest)
    variables = {"x": pixels, "c": pc.Categorical(10), "z": pc.Binary(config.latents)}
    networks = {
        "x": pc.networks.mlp(variables, "x", hidden=config.hidden, depth=1),
        "c": pc.networks.mlp(variables, "c", reads=["x"], hidden=config.hidden_class, depth=1, noise=config.noise),
        "z": pc.networks.mlp(variables, "z", hidden=config.hidden, depth=1),
    }
    return pc.JointModel({n: pc.Conditional(variables[n], networks[n]) for n in "xzc"})  # the order of systematic scans


def training_data(config: Config, hide_labels: float, hide_halves: float) -> pc.Data:
    """Copies of the training images, each with other images reduced to one half."""
    digits = pc.datasets.digits(hide={"c": hide_labels}, seed=config.seed)
    state = {name: torch.cat([value] * config.copies) for name, value in digits.state.items()}
    mask = {name: torch.cat([value] * config.copies) for name, value in digits.mask.items()}
    generator = torch.Generator().manual_seed(config.seed)
    rows = len(state["c"])
    if hide_labels:
        state["x"] = shifted(state["x"], config.shift_few_labels, generator)
    shares = torch.tensor([config.top_halves, *[(1 - config.top_halves) / 3] * 3])
    seen = HALVES[torch.multinomial(shares, rows, replacement=True, generator=generator)]
    whole = torch.rand(rows, 1, generator=generator) >= hide_halves
    labelled = mask["c"].nonzero().squeeze(1)
    share = config.labelled_share
    repeats = max(0.0, (share * rows - len(labelled)) / (len(labelled) * (1 - share)))
    extra = labelled.repeat(round(repeats)) if len(labelled) < rows else labelled[:0]
    return pc.Data(state, {**mask, "x": seen | whole})[torch.cat([torch.arange(rows), extra])]


def shifted(images: Tensor, pixels: float, generator: torch.Generator) -> Tensor:
    """Move each image by up to `pixels` each way, with linear interpolation and an empty border."""
    shape = [len(images), 1, 8, 8]
    move = (2 * torch.rand(len(images), 2, 1, generator=generator) - 1) * pixels / 4  # the image is 2 units wide
    grid = nn.functional.affine_grid(torch.cat([torch.eye(2).expand(len(images), 2, 2), move], 2), shape, False)
    return nn.functional.grid_sample(images.view(shape), grid, align_corners=False).view(-1, 64)


def train(config: Config, hide_labels: float, device: str) -> pc.JointModel:
    """Train all conditionals together, then, if no label is missing, p(c | x) alone."""
    torch.manual_seed(config.seed)
    last_rate = config.last_rate_few_labels if hide_labels else config.last_rate
    hide_halves = config.hidden_halves_few_labels if hide_labels else config.hidden_halves
    steps = config.completion_steps_few_labels if hide_labels else config.completion_steps
    learner = pc.Learner(
        make_model(config).to(device),
        training_data(config, hide_labels, hide_halves),
        chain_length=config.chain_length,
        completion=pc.CompletionOptions(steps=steps),
        batch_size=config.batch_size,
        learning_rate=pc.schedules.cosine(config.learning_rate, last_rate, config.updates),
        seed=config.seed,
    )
    model = learner.fit(config.updates)
    return model if hide_labels else train_class(model, config)


def train_class(model: pc.JointModel, config: Config) -> pc.JointModel:
    """Train p(c | x) alone, on images that mostly show one half; the other conditionals draw the rest."""
    parts = {name: model.conditional(name) for name in model.names}
    parts["c"].requires_grad_(True)  # the others stay frozen, as `fit` left them
    learner = pc.Learner(
        pc.JointModel(parts, {"x": 0.01, "z": 0.01, "c": 0.98}),  # steps at x and z learn nothing
        training_data(config, 0.0, config.hidden_halves_class),
        chain_length=1,
        completion=pc.CompletionOptions(steps=config.completion_steps_class),
        batch_size=config.batch_size,
        form=LiteralForm(scan="random"),
        learning_rate=pc.schedules.cosine(config.learning_rate_class, 1e-5, config.updates_class),
        seed=config.seed,
    )
    learned = learner.fit(config.updates_class)
    return pc.JointModel({name: learned.conditional(name) for name in model.names})


def train_control(config: Config, noise: float, device: str) -> float:
    """Accuracy from the top half of a network of the size of p(c | x) that is trained only for that."""
    torch.manual_seed(config.seed)
    train, test = pc.datasets.digits(), pc.datasets.digits("test")
    net = nn.Sequential(nn.Linear(32, config.hidden_class), nn.SiLU(), nn.Linear(config.hidden_class, 10)).to(device)
    # 3e-3 is better than 1e-3 on fifths of the training digits.
    optimiser = torch.optim.Adam(net.parameters(), 3e-3)
    x, c = train.state["x"][:, TOP].to(device), train.state["c"].to(device)
    generator = torch.Generator().manual_seed(config.seed)
    updates = config.updates // 3 + config.updates_class
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, updates)
    for _ in range(updates):
        rows = torch.randint(len(c), (config.batch_size,), generator=generator)
        noisy = x[rows] + noise * torch.randn(len(rows), 32, generator=generator).to(device)
        loss = nn.functional.cross_entropy(net(noisy), c[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return _accuracy(net(test.state["x"][:, TOP].to(device)).argmax(1), test.state["c"])


def ask(model: pc.JointModel, config: Config) -> Answers:
    """Ask one model in every direction."""
    test = pc.datasets.digits("test")
    x, c = test.state["x"], test.state["c"]
    whole = pc.query(model, {"x": x}, ["c"], seed=config.seed)
    top, stop = {"x": pc.Observed(x, TOP)}, pc.Tours(config.tours)
    half = pc.query(model, top, ["c", "x"], stop=stop, regeneration=SHORT, seed=config.seed)
    generated, drawn = generate(model, config)
    notes = [f"whole images: {whole.diagnostics!r}", f"top halves: {half.diagnostics!r}"]
    return Answers(
        _accuracy(whole.decisions["c"], c),
        _accuracy(half.decisions["c"], c),
        diversity(generated),
        diversity(drawn),
        latent_usage(model, test, "z", seed=config.seed),
        generated,
        half.mean["x"].cpu(),
        half.probabilities["c"].cpu(),
        notes,
    )


def generate(model: pc.JointModel, config: Config) -> tuple[Tensor, Tensor]:
    """Means of p(x | c, z) and draws of x, from the limit, class by class."""
    classes = torch.arange(10).repeat_interleave(config.generated).to(model.device)
    state = pc.sample(model, {"c": classes}, seed=config.seed)
    with torch.no_grad():
        return model("x", state).mean.cpu(), state["x"].cpu()


def diversity(generated: Tensor) -> list[float]:
    """Per class: mean standard deviation of pixels, of generated over real images."""
    real = pc.datasets.digits()
    parts = generated.view(10, -1, 64)
    return [float(parts[k].std(0).mean() / real.state["x"][real.state["c"] == k].std(0).mean()) for k in range(10)]


def read_back(generated: Tensor) -> float:
    """Accuracy on generated images of a support vector machine trained on real ones."""
    from sklearn.svm import SVC  # here, since the import takes half a second

    real = pc.datasets.digits().state
    machine = SVC(C=10.0, gamma=1 / 16).fit(real["x"].numpy(), real["c"].numpy())
    classes = torch.arange(10).repeat_interleave(len(generated) // 10)
    return _accuracy(torch.as_tensor(machine.predict(generated.numpy())), classes)


def _accuracy(decided: Tensor, truth: Tensor) -> float:
    return float((decided.cpu() == truth).float().mean())


def job(config: Config, hide_labels: float, device: str) -> tuple[Answers, float]:
    """Train and ask a model, then train a control: without noise if all labels are there, else with noise."""
    answers = ask(train(config, hide_labels, device), config)
    return answers, train_control(config, config.noise if hide_labels else 0.0, device)


def main(config: Config) -> Outcome:
    if config.quick:
        config = replace(config, updates=300, updates_class=100, tours=8, generated=20)
    runner = Runner(
        name="demo",
        title="One model of digits answers every question",
        about="A joint model p(image, class, latent) of scikit-learn's 8 x 8 digits: three conditionals, learned "
        "together. Every answer clamps the known groups and runs the Markov chain, or uses a single conditional that "
        "reads only known groups (the class of a whole image).",
        config=config,
        device=choose_device(config.device),
    )
    title = "training and asking two models side by side, with all labels and with a tenth of them (about a minute)"
    jobs = [partial(job, config, hide, runner.device) for hide in (0.0, 0.9)]
    (full, plain_control), (tenth, control) = run_side_by_side(jobs, runner.device, title)
    seconds = time.perf_counter() - runner.began
    runner.metrics = _metrics(full, tenth, control, plain_control)
    runner.metrics.append(Metric("seconds", seconds, "lower", goal=75, about="the whole run, after installation"))
    show(runner, full, tenth)
    outcome = runner.write()
    picture(full).savefig(config.out / "picture.png", dpi=110, bbox_inches="tight")
    return outcome


def _metrics(full: Answers, tenth: Answers, control: float, plain_control: float) -> list[Metric]:
    rows: list[tuple[str, float, str, float | None, str]] = [
        ("accuracy", full.accuracy, "higher", 0.975, "held-out fifth, whole images"),
        ("accuracy_tenth_of_labels", tenth.accuracy, "higher", 0.93, "90% of the labels missing"),
        ("accuracy_half_image", full.half_accuracy, "higher", control - 0.02, "class from the top half"),
        ("accuracy_half_image_control", control, "higher", None, "a network trained only for that, same noise"),
        ("accuracy_half_image_control_plain", plain_control, "higher", None, "the same control without noise"),
        ("diversity_min", min(full.diversity), "higher", 0.75, "pixel deviation of means, generated / real"),
        ("diversity_max", max(full.diversity), "lower", 1.15, "the least and the most diverse class"),
        ("diversity_min_draws", min(full.drawn_diversity), "higher", 0.75, "the same of draws of x"),
        ("diversity_max_draws", max(full.drawn_diversity), "lower", 1.15, "the same of draws of x"),
        ("read_back", read_back(full.generated), "higher", 0.9, "accuracy of an SVM on generated means"),
        ("active_latents", full.usage.count, "higher", 8, "more than 0.02 nats, also after a redraw"),
    ]
    return [Metric(name, value, better, goal=goal, about=about) for name, value, better, goal, about in rows]
