"""Are the answers by tours right, fast, and good for anomalies?

    python benchmarks/tours.py coverage auroc speed --data DIR [--out results]

    coverage             share of 95% intervals that hold the exact value: probabilities, means and standard deviations
                         of 200 clamped questions to a known joint (two binary groups, a ternary one, and a number whose
                         mean and scale depend on them), for the tours that `choose_regeneration` finds
    auroc_fashion_mnist  how well `anomaly_score` of models/fashion tells test images of MNIST from Fashion-MNIST's
    query_speedup        rows per second of class and image from the top half of MNIST test images, to the standard
                         error .02, over the same by chains that never begin anew (R-hat 1.05, effective size 625)

DIR has the folders mnist and fashion, with the IDX files. Parts that are not named keep their former numbers.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import paracond as pc
from paracond.experiments.common.results import Metric, Outcome

ROOT = Path(__file__).parents[1]
SEEDS = 10
NORMAL = 1.96


# --- a known joint ----------------------------------------------------------------------------------------------------


class KnownJoint:
    """p(a, b, d) from a table, and g | a, b, d ~ N(mean, scale^2) with one mean and scale per cell."""

    groups = {  # noqa: RUF012
        "a": pc.Binary(()),
        "b": pc.Categorical(3),
        "d": pc.Binary(()),
        "g": pc.Real((), initial_scale=1.0, ceiling=None),
    }

    def __init__(self, seed: int):
        generator = torch.Generator().manual_seed(seed)
        options: dict = {"generator": generator, "dtype": torch.float64}
        self.log_p = torch.randn(2, 3, 2, **options).flatten().log_softmax(0).view(2, 3, 2)
        self.mean = 1.5 * torch.randn(2, 3, 2, **options)
        self.scale = (0.5 * torch.randn(2, 3, 2, **options)).exp()
        parts = {name: pc.Conditional(family, Rule(self, name)) for name, family in self.groups.items()}
        self.model = pc.JointModel(parts).double()
        self.generator = generator

    def draw(self, rows: int) -> dict[str, Tensor]:
        """Exact draws."""
        cell = torch.multinomial(self.log_p.exp().flatten(), rows, replacement=True, generator=self.generator)
        a, b, d = torch.unravel_index(cell, (2, 3, 2))
        noise = torch.randn(rows, generator=self.generator, dtype=torch.float64)
        g = self.mean.flatten()[cell] + self.scale.flatten()[cell] * noise
        return {"a": a.double(), "b": b, "d": d.double(), "g": g}

    def log_density(self, g: Tensor) -> Tensor:
        """log p(a, b, d, g) in all cells, `[rows, 2, 3, 2]`."""
        return self.log_p + torch.distributions.Normal(self.mean, self.scale).log_prob(g.view(-1, 1, 1, 1))

    def posterior(self, state: dict[str, Tensor], known: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Given what is known of each row: probabilities of all cells, and the mean and standard deviation of g."""
        weights = torch.where(known["g"].view(-1, 1, 1, 1), self.log_density(state["g"]), self.log_p).exp()
        for axis, name in enumerate("abd"):
            values = torch.arange(weights.shape[1 + axis]).view([-1 if k == axis else 1 for k in range(3)])
            fits = (state[name].view(-1, 1, 1, 1) == values) | ~known[name].view(-1, 1, 1, 1)
            weights = weights * fits
        p = weights / weights.sum((1, 2, 3), keepdim=True)
        mean = (p * self.mean).sum((1, 2, 3))
        square = (p * (self.mean.square() + self.scale.square())).sum((1, 2, 3))
        return p, mean, (square - mean.square()).sqrt()


class Rule(nn.Module):
    """The exact conditional of one group."""

    def __init__(self, joint: KnownJoint, name: str):
        super().__init__()
        self.joint, self.name = joint, name

    def forward(self, others: dict[str, Tensor]) -> Tensor:
        rows = torch.arange(len(next(iter(others.values()))))
        index = {name: others[name].argmax(1) if name == "b" else others[name].long() for name in others if name != "g"}
        if self.name == "g":
            at = index["a"], index["b"], index["d"]
            family = self.joint.groups["g"]
            gap = self.joint.scale[at].log() - torch.tensor(family.floor).log()
            one = torch.tensor(1 / family.floor, dtype=gap.dtype).log()
            return torch.stack([self.joint.mean[at], gap.expm1().log() - one.expm1().log()], 1)
        density = self.joint.log_density(others["g"])
        if self.name == "b":
            return density[rows, index["a"], :, index["d"]]
        both = density[rows, :, index["b"], index["d"]] if self.name == "a" else density[rows, index["a"], index["b"]]
        return both[:, 1] - both[:, 0]


def coverage() -> list[Metric]:
    """Twenty questions to each of ten joints; what is clamped differs from row to row."""
    hits: dict[str, list[Tensor]] = {"probabilities": [], "means": [], "standard deviations": []}
    for seed in range(SEEDS):
        joint = KnownJoint(seed)
        joint.model.regeneration = pc.choose_regeneration(joint.model, joint.draw(2000), seed=seed)
        state = joint.draw(20)
        known = {name: torch.rand(20, generator=joint.generator) < 0.4 for name in joint.groups}
        known["a"][known["a"] & known["b"] & known["d"]] = False  # something must be left to ask
        given = {name: pc.Observed(state[name], known[name]) for name in joint.groups}
        answer = pc.query(joint.model, given, list(joint.groups), stop=pc.Tours(200), seed=seed)
        p, mean, std = joint.posterior(state, known)
        for axis, name in enumerate("abd"):
            exact = p.sum([1 + k for k in range(3) if k != axis])
            exact = exact[:, 1] if exact.shape[1] == 2 else exact
            _count(hits["probabilities"], answer.probabilities[name], answer.error[name], exact)
        _count(hits["means"], answer.mean["g"], answer.error["g"], mean)
        _count(hits["standard deviations"], answer.std["g"], answer.error_of_std["g"], std)
    shares = {name: float(torch.cat(found).double().mean()) for name, found in hits.items()}
    for name, share in shares.items():
        print(f"coverage of {name}: {share:.3f} of {len(torch.cat(hits[name]))}")
    every = torch.cat([torch.cat(found) for found in hits.values()]).double()
    about = ", ".join(f"{name} {share:.3f}" for name, share in shares.items())
    return [Metric("coverage", round(float(every.mean()), 4), "higher", goal=0.93, about=f"at most .97; {about}")]


def _count(hits: list[Tensor], value: Tensor, error: Tensor, exact: Tensor) -> None:
    asked = error > 0
    hits.append(((value - exact).abs() <= NORMAL * error)[asked])


# --- images -----------------------------------------------------------------------------------------------------------


def auroc(data: Path | None, rows: int = 10_000, few: int = 500) -> list[Metric]:
    model = pc.JointModel.load(ROOT / "models/fashion").to(_device())
    found = {}
    for by, count in (("evidence", rows), ("surprise", few)):
        images = {name: getattr(pc.datasets, name)("test", folder=_folder(data, name)) for name in ("fashion", "mnist")}
        scores = {
            name: pc.anomaly_score(
                model, {"x": test[:count].state["x"].to(model.device)}, by=by, draws=_draws(by)
            ).cpu()
            for name, test in images.items()
        }
        above = scores["mnist"][:, None] > scores["fashion"].sort().values
        found[by] = float(above.double().mean())
        print(f"AUROC by {by}, {count} images of each: {found[by]:.4f}", flush=True)
    about = f"by evidence, {rows:,} images each; by surprise, {few}: {found['surprise']:.4f}"
    return [Metric("auroc_fashion_mnist", round(found["evidence"], 4), "higher", about=about)]


def _draws(by: str) -> int:
    return 256 if by == "evidence" else 1


def speed(data: Path | None, rows: int, error: float = 0.02) -> list[Metric]:
    """Both after a first question, which compiles and records."""
    model = pc.JointModel.load(ROOT / "models/mnist").to(_device())
    images = pc.datasets.mnist("test", folder=_folder(data, "mnist")).state["x"].to(model.device)
    top = torch.zeros(1, 28, 28, dtype=torch.bool)
    top[:, :14] = True
    ways: dict[str, dict] = {
        "tours": {"stop": pc.Precise(error, most=100_000)},
        "chains": {"stop": pc.Converged(ess=0.25 / error**2, limit=16_000), "regeneration": 0},
    }
    rates = {}
    for name, options in ways.items():
        for part in (images[: min(rows, 64)], images[64 : 64 + rows]):
            began = time.perf_counter()
            answer = pc.query(model, {"x": pc.Observed(part, top)}, ["c", "x"], **options)
            rates[name] = len(part) / (time.perf_counter() - began)
        print(f"{name}: {rates[name]:.3g} rows per second, {answer.diagnostics!r}", flush=True)
    about = f"{rows} rows; {rates['tours']:.3g} and {rates['chains']:.3g} rows per second"
    return [Metric("query_speedup", round(rates["tours"] / rates["chains"], 3), "higher", goal=2.0, about=about)]


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _folder(data: Path | None, name: str) -> Path | None:
    return None if data is None else data / name


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=["coverage", "auroc", "speed"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rows", type=int, default=1000, help="of the speed")
    parser.add_argument("--images", type=int, default=10_000, help="of each data set, for the AUROC")
    parser.add_argument("--out", type=Path, default=Path("results"))
    options = parser.parse_args(arguments)
    began, metrics = time.perf_counter(), []
    for part in options.parts:
        calls = {
            "coverage": coverage,
            "auroc": lambda: auroc(options.data, options.images, min(500, options.images)),
            "speed": lambda: speed(options.data, options.rows),
        }
        metrics += calls[part]()
    outcome = Outcome("tours", metrics, time.perf_counter() - began, {"parts": options.parts}, _device())
    record = outcome.record() | {"command": f"python benchmarks/tours.py {' '.join(options.parts)}"}
    path = options.out / "tours.json"
    former = json.loads(path.read_text()) if path.exists() else {"metrics": []}
    kept = [each for each in former["metrics"] if each["name"] not in {metric.name for metric in metrics}]
    record["metrics"] = kept + record["metrics"]
    options.out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    outcome.show()


if __name__ == "__main__":
    main()
