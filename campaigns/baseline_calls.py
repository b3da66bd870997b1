"""Valid calls of `paracond.baselines`, `paracond.theory` and `paracond.metrics`; `api_calls` has the others."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import torch
from api_calls import DATA, MODELS, Arg, Call, _augments, _own_randomness, _Rate, _seed, call, finite_numbers
from hostile_values import Attack, Count, Flag, Free, Groups, Is, Kind, Names, Num, Shape, Values, Word
from torch import Tensor, nn

import paracond as pc
from paracond.baselines import directed, harmonium, special_cases
from paracond.metrics import fid, scores
from paracond.theory import kernels, noise_kernels, regenerative

ROWS = 20
SIDES = {"x": pc.Binary(3), "y": pc.Binary(2)}
WORDS = ("model", "JointModel", "harmonium", "groups")


def _draws(seed: int, *shape: int) -> Tensor:
    return torch.randint(2, shape, generator=torch.Generator().manual_seed(seed)).float()


def _pair() -> pc.JointModel:
    torch.manual_seed(0)
    return harmonium.rbm(3, 2)


def _data(both: bool = False) -> pc.Data:
    x = {"x": _draws(1, ROWS, 3)}
    return pc.Data(x | {"y": _draws(2, ROWS, 2)} if both else x)


def _model(made: pc.JointModel) -> Arg:
    return Arg(made, Is((pc.JointModel,), more=MODELS), WORDS)


def _examples(found: pc.Data) -> Arg:
    return Arg(found, Is((pc.Data,), more=DATA), ("data", "Data", "typo", "x", "group"))


def _finite(found: Any, _: dict[str, Any]) -> None:
    finite_numbers(found)


def _call(name: str, function: Callable[..., Any], args: dict[str, Arg], words: tuple[str, ...] = ()) -> Call:
    return Call(name, _own_randomness(function), args, _finite, words=words)


# --- harmoniums -------------------------------------------------------------------------------------------------------


@call(0.5)
def harmoniums(rng: Random) -> Call:
    which = rng.choice(["harmonium", "rbm", "gaussian_rbm"])
    shapes = {"visible": Arg(3, Shape(), ("visible", "shape")), "hidden": Arg(2, Shape(), ("hidden", "shape"))}
    args = {
        "harmonium": {"variables": Arg(dict(SIDES), _Families(), ("variables", "harmonium", "group"))},
        "rbm": shapes,
        "gaussian_rbm": shapes | {"scale": Arg(1.0, Num(0, open_low=True), ("scale",))},
    }[which]

    def function(**options: Any) -> Any:
        made = getattr(harmonium, which)(**options)
        repr(made)
        return dict(made.state_dict())

    return _call(f"harmonium.{which}", function, args)


class _Families(Kind):
    """A dictionary of two families."""

    def own(self, valid: Any) -> list[Attack]:
        wrong = {"one group": {"x": pc.Binary(2)}, "a class": {"x": pc.Binary, "y": pc.Binary(2)}}
        wrong |= {"a number": {"x": 3, "y": pc.Binary(2)}, "free scale": {"x": pc.Real(2), "y": pc.Binary(2)}}
        wrong |= {"names": {1: pc.Binary(2), 2: pc.Binary(2)}}
        return [Attack(label, lambda value=value: value, "bad") for label, value in wrong.items()]


@call(1)
def what_harmoniums_know(rng: Random) -> Call:
    which = rng.choice(["free_energy", "log_likelihood", "pseudo_likelihood", "log_normaliser"])
    args = {"model": _model(_pair())}
    if which != "log_normaliser":
        args["x"] = Arg(_draws(3, 4, 3), Values(pc.Binary(3)), ("x", "data"))

    def function(**options: Any) -> Any:
        return getattr(harmonium, which)(**options).detach()

    return _call(f"harmonium.{which}", function, args)


@call(0.7)
def contrastive_divergence(rng: Random) -> Call:
    args = {
        "model": _model(_pair()),
        "data": _examples(_data(rng.random() < 0.3)),
        "sweeps": Arg(rng.choice([1, 2]), Count(), ("sweeps",)),
        "persistent": Arg(rng.random() < 0.5, Flag(), ("persistent",)),
        "batch_size": Arg(5, Count(), ("batch_size",)),
        "learning_rate": Arg(rng.choice([None, 0.1]), _Rate(0, none=True), ("learning_rate",)),
        "optimiser": Arg(harmonium.sgd, Is((), more=_makers()), ("optimiser",)),
        "seed": _seed(rng),
        "steps": Arg(2, Count(0), ("steps",)),
    }

    def function(steps: Any, **options: Any) -> Any:
        return {k: v.detach() for k, v in harmonium.ContrastiveDivergence(**options).fit(steps).state_dict().items()}

    return _call("harmonium.ContrastiveDivergence", function, args)


def _makers() -> tuple[Attack, ...]:
    """Optimisers of those learners that have one."""
    return (
        Attack("lambda: 1", lambda: lambda: 1, "bad"),
        Attack("lambda p: None", lambda: lambda p: None, "bad"),
        Attack("'sgd'", lambda: "sgd", "bad"),
        Attack("torch.optim.Adam", lambda: torch.optim.Adam, "fine"),
    )


# --- directed models --------------------------------------------------------------------------------------------------


@call(1)
def directed_learners(rng: Random) -> Call:
    which = rng.choice(["VAE", "Symmetric"])
    args = {
        "model": _model(_pair()),
        "data": _examples(_data()),
        "batch_size": Arg(5, Count(huge=True), ("batch_size",)),
        "learning_rate": Arg(rng.choice([None, 0.01]), _Rate(0, ("x", "y"), none=True), ("learning_rate", "typo")),
        "augment": Arg(None, Is((), none=True, more=_augments()), ("augment",)),
        "average": Arg(0.9, Num(0, 1), ("average",)),
        "seed": _seed(rng),
    }
    if which == "VAE":
        args["estimator"] = Arg("disarm", Word(("gumbel", "straight-through", "disarm", "exact"), none=True))
        args["prior"] = _prior(rng)
    else:
        args["completed_by"] = Arg("model", Word(("model", "average")), ("completed_by",))
    args["estimator" if which == "VAE" else "completed_by"].words = ("estimator", "completed_by")

    def function(**options: Any) -> Any:
        return {k: v.detach() for k, v in getattr(directed, which)(**options).fit(2, False).state_dict().items()}

    return _call(f"directed.{which}", function, args)


def _prior(rng: Random) -> Arg:
    return Arg(rng.choice([None, _data()]), Is((pc.Data,), none=True), ("prior",))


@call(0.7)
def directed_answers(rng: Random) -> Call:
    which = rng.choice(["random_code", "elbo"])
    args = {"model": _model(_pair()), "prior": _prior(rng), "seed": _seed(rng)}
    if which == "random_code":
        args["latent"] = Arg("y", Names(["x", "y"], only_one=True), ("latent", "there is a prior"))
        args["given"] = Arg({}, Groups({}), ("given", "random code", "typo", "variable"))
        args["rows"] = Arg(3, Count(huge=True), ("rows",))
    else:
        args["data"] = _examples(_data())
        args["draws"] = Arg(2, Count(), ("draws",))
    return _call(f"directed.{which}", getattr(directed, which), args)


@call(0.7)
def special(rng: Random) -> Call:
    which = rng.choice(["pseudo_likelihood", "symmetric_equilibrium", "wake_sleep"])
    args = {"model": _model(_pair()), "data": _examples(_data(which == "pseudo_likelihood"))}
    if which != "pseudo_likelihood":
        args["prior"] = Arg(_draws(5, 6, 2), Values(pc.Binary(2)), ("prior", "y"))
    args["batch_size"] = Arg(4, Count(huge=True), ("batch_size",))
    args["chain_length"] = Arg(None, Free(), ("chain_length",))

    def function(chain_length: Any, **options: Any) -> Any:
        more = {} if chain_length is None else {"chain_length": chain_length}
        learner = getattr(special_cases, which)(**options, **more)
        return {k: v.detach() for k, v in learner.fit(2, False).state_dict().items()}

    return _call(f"special_cases.{which}", function, args)


# --- kernels ----------------------------------------------------------------------------------------------------------


def _factor() -> kernels.FactorKernel:
    return kernels.FactorKernel("z", pc.Conditional(pc.Binary(3), kernels.LogLinear("z", 3)))


KERNELS = (
    Attack("a Kernel", lambda: kernels.Kernel, "bad"),
    Attack("nn.Linear", lambda: nn.Linear(1, 1), "bad"),
    Attack("a model", _pair, "bad"),
)


def _kernel(made: kernels.Kernel, *words: str) -> Arg:
    return Arg(made, Is((kernels.Kernel,), more=KERNELS), ("kernel", *words))


def _states(seed: int) -> Arg:
    return Arg({"z": _draws(seed, ROWS, 3)}, Groups({"z": pc.Binary(3)}, empty=False), ("data", "state", "z", "group"))


@call(1)
def kernel_learners(rng: Random) -> Call:
    which = rng.choice(["KernelLearner", "diffusion"])
    args = {
        "kernel": _kernel(_factor()),
        "data": _states(1),
        "batch_size": Arg(4, Count(), ("batch_size",)),
        "chain_length": Arg(rng.choice([3, 2.5]), _Rate(1), ("chain_length",)),
        "learning_rate": Arg(rng.choice([None, 0.1]), _Rate(0, none=True), ("learning_rate",)),
        "form": Arg(rng.choice(["running", "literal"]), Word(kernels.FORMS), ("form",)),
        "optimiser": Arg(kernels.adam, Is((), more=_makers()), ("optimiser",)),
        "seed": _seed(rng),
    }
    if which == "KernelLearner":
        more = Word(("forward",), others=(kernels.Kernel,))
        args["q"] = Arg("forward", more, ("q must", "updates end the symmetry"))
    else:
        args["noise"] = _kernel(noise_kernels.Flips("z", 0.2), "noise")

    def function(**options: Any) -> Any:
        made = (kernels if which == "KernelLearner" else special_cases).__dict__[which](**options)
        return {k: v.detach() for k, v in made.fit(2, False).state_dict().items()}

    return _call(f"theory.{which}", function, args)


@call(0.7)
def kernel_parts(rng: Random) -> Call:
    which = rng.choice(["Flips", "Regenerative", "RandomValues", "LogLinear", "FactorKernel", "JointKernel"])
    made: dict[str, tuple[Any, dict[str, Arg]]] = {
        "Flips": (
            noise_kernels.Flips,
            {
                "name": Arg("z", Is((str,)), ("name", "group")),
                "chance": Arg(0.2, Num(0, 1, open_low=True), ("chance",)),
            },
        ),
        "Regenerative": (
            regenerative.Regenerative,
            {
                "kernel": _kernel(_factor()),
                "begin": _kernel(regenerative.RandomValues({"z": pc.Binary(3)}), "begin"),
                "rate": Arg(0.2, Num(0, 1, open_low=True, open_high=False), ("rate",)),
            },
        ),
        "RandomValues": (
            regenerative.RandomValues,
            {"families": Arg({"z": pc.Binary(3)}, Kind(), ("families", "random values"))},
        ),
        "LogLinear": (
            kernels.LogLinear,
            {
                "name": Arg("z", Is((str,)), ("name", "group")),
                "size": Arg(3, Count(), ("size",)),
            },
        ),
        "FactorKernel": (
            kernels.FactorKernel,
            {
                "name": Arg("z", Is((str,)), ("name", "group")),
                "conditional": Arg(_factor().conditional, Is((pc.Conditional,)), ("conditional",)),
            },
        ),
        "JointKernel": (
            kernels.JointKernel,
            {"model": _model(_pair()), "reversible": Arg(True, Flag(), ("reversible",))},
        ),
    }
    function, args = made[which]
    return _call(f"theory.{which}", lambda **options: repr(function(**options)), args)


@call(0.7)
def kernel_sequences(rng: Random) -> Call:
    which = rng.choice(["sequence", "objective"])
    generator = torch.Generator().manual_seed(rng.randrange(99))
    n = Arg(3, Count(int(which == "objective")), ("n must", "n is", "states"))
    if which == "sequence":
        args = {"q": _kernel(_factor(), "q must"), "first": _states(2), "n": n}
        args["first"].words = ("first", "z", "state", "group")
    else:
        args = {"p": _kernel(_factor(), "p must"), "q": _kernel(_factor(), "q must"), "data": _states(3), "n": n}

    def function(**options: Any) -> Any:
        found = getattr(kernels, which)(**options, generator=generator)
        return found.f if which == "objective" else found[-1]

    return _call(f"theory.{which}", function, args, ("data",))


# --- metrics ----------------------------------------------------------------------------------------------------------


@call(1)
def metrics(rng: Random) -> Call:
    which = rng.choice(["accuracy", "f1", "psnr"])
    first, second = ("found", "truth") if which == "psnr" else ("decided", "truth")
    words = ("decided", "decisions", "truth", "found", "masks", "where")
    args = {first: Arg(_draws(1, 4, 3), _Plain(), words), second: Arg(_draws(2, 4, 3), _Plain(shaped=True), words)}
    if which == "psnr":
        args["where"] = Arg(rng.choice([None, torch.ones(4, 3, dtype=torch.bool)]), _Where(), ("where",))
    return Call(f"metrics.{which}", getattr(scores, which), args)


class _Plain(Kind):
    """Numbers; `shaped` ones must have the shape of others."""

    def __init__(self, shaped: bool = False):
        self.shaped = shaped

    def own(self, valid: Any) -> list[Attack]:
        shapes = [
            Attack("a row less", lambda: valid[1:], "bad"),
            Attack("one row", lambda: valid[:1], "bad"),
            Attack("no rows", lambda: valid[:0], "bad"),
        ]
        return (shapes if self.shaped else []) + [
            Attack("list", valid.tolist, "fine"),
            Attack("numpy", valid.numpy, "fine"),
            Attack("NaN", lambda: valid * float("nan"), "bad"),
            Attack("complex", lambda: valid.to(torch.complex64), "bad"),
        ]


class _Where(Kind):
    """A mask of places, or None for all of them."""

    def judge(self, value: Any, valid: Any) -> str:
        return "fine" if value is None or isinstance(value, bool | np.bool_) else "bad"

    def own(self, valid: Any) -> list[Attack]:
        return [
            Attack("no place", lambda: torch.zeros(4, 3, dtype=torch.bool), "bad"),
            Attack("numbers", lambda: torch.ones(4, 3), "bad"),
            Attack("another shape", lambda: torch.ones(2, 9, dtype=torch.bool), "bad"),
        ]


class _Flat(nn.Module):
    """A network of features that is quick."""

    def forward(self, images: Tensor) -> Tensor:
        return images[:, :, ::100, ::100].flatten(1)


@call(0.5)
def distances(rng: Random) -> Call:
    extractor = fid.Extractor(_Flat(), "a test")
    generator = torch.Generator().manual_seed(1)
    words = ("images", "covariance")
    args = {
        "real": Arg(torch.rand(6, 1, 8, 8, generator=generator), _Images(), words),
        "images": Arg(torch.rand(5, 1, 8, 8, generator=generator), _Images(), words),
        "batch": Arg(4, Count(), ("batch",)),
    }

    def function(real: Any, images: Any, batch: Any) -> float:
        return fid.FID(extractor, batch=batch).real(real).score(images).value

    return _call("metrics.FID", function, args)


class _Images(Kind):
    """Images in [0, 1]."""

    def own(self, valid: Any) -> list[Attack]:
        return [
            Attack("NaN", lambda: valid * float("nan"), "bad"),
            Attack("bytes", lambda: (valid * 255).byte(), "bad"),
            Attack("two channels", lambda: valid.repeat(1, 2, 1, 1), "bad"),
            Attack("over 1", lambda: valid + 1, "bad"),
            Attack("one image", lambda: valid[:1], "bad"),
            Attack("no batch axis", lambda: valid[0], "bad"),
            Attack("numpy", valid.numpy, "fine"),
        ]
