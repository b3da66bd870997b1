"""What `test_before` compares: losses of small trainings, and answers of the models that are shipped."""

from pathlib import Path
from typing import ClassVar

import torch

import paracond as pc
from paracond.experiments import ising
from paracond.experiments.comparison import model as compare_model
from paracond.experiments.digits import experiment as demo
from paracond.experiments.faces import model as faces_model
from paracond.experiments.images import model as images

MODELS = Path(__file__).parents[1] / "models"


def losses(learner, steps):
    """The loss of every update, and all weights after them."""
    found = [info.loss if hasattr(info, "loss") else sum(info.losses.values()) for info in learner.run(steps)]
    weights = torch.cat([p.detach().flatten().float() for p in learner.averaged.parameters()])
    return {"losses": torch.stack(found), "weights": weights}


class Recorded(pc.Learner):
    """A learner that keeps its losses, for programs that call `fit`."""

    kept: ClassVar[list] = []

    def step(self):
        info = super().step()
        Recorded.kept.append(info.loss)
        return info


def recorded(module, work):
    former, Recorded.kept = module.pc.Learner, []
    module.pc.Learner = Recorded
    try:
        result = work()
    finally:
        module.pc.Learner = former
    return result, torch.stack(Recorded.kept)


def three_nodes(missing):
    config = ising.Config(repeats=10, examples=2000, updates=300)
    generator = torch.Generator().manual_seed(3)
    z = ising.draw(ising.truth(config.a, config.b), 10, 2000, generator)
    known = torch.rand(z.shape, generator=generator) >= missing
    limiting, found = recorded(ising, lambda: ising.learn(z, known, config, "cpu"))
    return {"losses": found, "limiting": limiting}


def digits(hide):
    config = demo.Config(updates=120, updates_class=40, copies=4)
    model, found = recorded(demo, lambda: demo.train(config, hide, "cpu"))
    given = {"x": pc.Observed(pc.datasets.digits("test").state["x"][:8], demo.TOP)}
    answer = ask(model, given)
    return {"losses": found, "c": answer.probabilities["c"], "x": answer.samples["x"]}


def ask(model, given):
    return pc.query(model, given, chains=2, stop=pc.Sweeps(4), seed=1)


def scenes(rows=96):
    """Pictures of two grey squares, and their class."""
    generator = torch.Generator().manual_seed(0)
    c = torch.randint(10, (rows,), generator=generator)
    x = 0.1 * torch.rand(rows, 1, 28, 28, generator=generator)
    for k in range(rows):
        x[k, 0, 2 * int(c[k]) : 2 * int(c[k]) + 6, 4:20] += 0.7
    return x, c


def small_images(labels=None, **changes):
    x, c = scenes()
    design = images.small(images.Design(**{"latents": 8, "maps": 2, **changes}))
    data = pc.Data({"x": x, "c": c}, None if labels is None else {"c": torch.arange(len(c)) < labels})
    return losses(images.make_learner(design, data, pc.Engine("cpu"), 0), 40)


def small_faces(**changes):
    generator = torch.Generator().manual_seed(0)
    rows = 24
    state = {
        "x": torch.rand(rows, 3, 64, 64, generator=generator),
        "s": torch.randint(19, (rows, 64, 64), generator=generator),
        "c": (torch.rand(rows, 40, generator=generator) < 0.5).float(),
    }
    data = pc.Data(state, {"s": torch.arange(rows) < 12, "c": torch.arange(rows) >= 4})
    design = faces_model.small(faces_model.Design(**changes))
    return losses(faces_model.make_learner(design, data, pc.Engine("cpu"), 0), 24)


def compared(method):
    x, c = scenes()
    data = pc.Data({"x": x, "c": c})
    pictures = compare_model.Pictures(data, data, pc.Categorical(10), lambda c: c, 10)
    learner = compare_model.make_learner(
        compare_model.small(compare_model.FASHION), pictures, method, pc.Engine("cpu"), 0
    )
    return losses(learner, 12)


def shipped(name, given, sweeps=2):
    model = pc.JointModel.load(MODELS / name)
    drawn = pc.sample(model, given, rows=2, sweeps=sweeps, seed=3)
    return {f"sample {group}": value for group, value in drawn.items()}


def shipped_query(name, given, want):
    model = pc.JointModel.load(MODELS / name)
    answer = pc.query(model, given, want, chains=2, stop=pc.Sweeps(2, 1), seed=3)
    found = {f"probabilities {group}": value for group, value in answer.probabilities.items()}
    return found | {f"draws {group}": value for group, value in answer.samples.items()}


def half_image():
    x, _ = scenes(2)
    return {"x": pc.Observed((x > 0.3).float(), torch.arange(28).view(1, 28, 1).expand(1, 28, 28) < 14)}


CASES = {
    "three nodes, complete": lambda: three_nodes(0.0),
    "three nodes, missing": lambda: three_nodes(1 / 3),
    "demo, all labels": lambda: digits(0.0),
    "demo, few labels": lambda: digits(0.9),
    "images": lambda: small_images(),
    "images, few labels": lambda: small_images(40, shifts=2, chain_length=(2.0, 6.0)),
    "images, no init": lambda: small_images(init=0, class_reads_latents=True, kind="plain"),
    "faces": lambda: small_faces(),
    "faces, in turn": lambda: small_faces(parallel=False),
    **{f"comparison, {method}": (lambda method=method: compared(method)) for method in ("vae", "symmetric", "ours")},
    "models/mnist": lambda: shipped("mnist", {"c": torch.tensor([3, 8])}),
    "models/fashion": lambda: shipped("fashion", {"c": torch.tensor([3, 8])}),
    "models/faces": lambda: shipped("faces", None, 1),
    "models/mnist, half": lambda: shipped_query("mnist", half_image(), ["c", "x"]),
    "models/fashion, half": lambda: shipped_query("fashion", half_image(), ["c", "x"]),
}
