"""Families of distributions: how a group of variables is stored, encoded and initialised, and its law given the rest.

A family says what values a group takes, and turns the output of a network into a `Distribution` (see `distributions`).

| family      | stored             | encoded (network input) | network output           | summary `mean`     |
|-------------|--------------------|-------------------------|--------------------------|--------------------|
| Binary      | float 0/1 `[*s]`   | as stored               | logits `[*s]`            | probability        |
| Categorical | index `[*s]`       | one-hot `[*s, K]`       | logits `[*s, K]`         | probabilities      |
| Real        | float `[*s]`       | as stored               | mean (, log-scale) `[*s]`| mean               |
| Truncated   | float `[*s]`       | as stored               | location (, log-scale)   | mean               |

A new family is one subclass of `Family` and one of `Distribution`; saving and loading find it by its name.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from numbers import Integral
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from paracond.data import MOST, InputError, as_float, shown
from paracond.distributions import LOG_2PI, Bernoulli, Distribution, Gaussian, Softmax, TruncatedGaussian
from paracond.serialization import class_named, name_of
from paracond.streams import Generator, integers, normal, uniform

Shape = tuple[int, ...]
# Adam moves every parameter by about its learning rate per update. A log-scale must move by several nats, each of the
# thousands of weights only a little. So the log-scale is this many times its parameter.
GAIN = 10.0
AUTO: Any = "auto"
# Limits of what networks of ours return for real groups without limits of their own, for values of standard deviation
# 1: a mean, and a standard deviation. With them no chain can run away (research/defaults_of_real.py).
FARTHEST, WIDEST = 10.0, 2.0
LARGEST = 1e18  # standard deviation, whose square is still finite


@dataclass(frozen=True)
class Family(ABC):
    """Says what values a group of variables takes. The base class of all families.

    A new family derives from it and is a frozen dataclass.

    shape: the shape of one value, without the batch: a number, a tuple, or () for a scalar.
    """

    shape: int | Shape = ()

    finite: ClassVar[bool] = False
    #: Whether single coordinates may be clamped: true where coordinates are independent given the rest. Where false,
    #: partial masks are refused.
    clamps_coordinates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        sizes = tuple(self.shape) if isinstance(self.shape, (tuple, list)) else (self.shape,)
        if any(not isinstance(n, Integral) or isinstance(n, bool) or not 1 <= n <= MOST for n in sizes):
            raise InputError(f"an event shape has positive whole numbers, at most {MOST:,}, found {shown(self.shape)}")
        plain = tuple(int(n) for n in sizes)  # not those of numpy, which JSON does not know
        object.__setattr__(self, "shape", plain if isinstance(self.shape, (tuple, list)) else plain[0])

    @property
    def event_shape(self) -> Shape:
        """Shape of a stored value, without the batch."""
        return (self.shape,) if isinstance(self.shape, int) else tuple(self.shape)

    @property
    def encoding_shape(self) -> Shape:
        """Shape of a value as networks read it, without the batch."""
        return self.event_shape

    @property
    def output_shape(self) -> Shape:
        """Shape of the output that the network of this group must return, without the batch."""
        return self.event_shape

    def shared_parameters(self) -> dict[str, Tensor]:
        """Initial values of parameters that do not depend on the rest of the state."""
        return {}

    def encode(self, value: Tensor) -> Tensor:
        """Encode values as networks read them, `[batch, *encoding_shape]`."""
        return value

    @abstractmethod
    def distribution(self, output: Tensor, **shared: Tensor) -> Distribution:
        """Return the distribution with the parameters in a network's output `[batch, *output_shape]`."""

    @abstractmethod
    def random(self, batch: int, generator: Generator, dtype: torch.dtype) -> Tensor:
        """Draw random values for the first state of a chain, on the generator's device."""

    @abstractmethod
    def decide(self, mean: Tensor) -> Tensor:
        """Decide by a marginal: the maximum for discrete groups, the mean for real ones."""

    @abstractmethod
    def check_values(self, name: str, known: Tensor) -> None:
        """Refuse finite observed values (a flat tensor) that the family cannot take."""

    def output_limits(self) -> list[list[float | None]] | None:
        """Low and high limits of each channel of a learned network's output (the first axis after the batch), or None.

        Laws that are written by hand have none: these are for networks that leave the data while they learn.
        """
        return None

    def check_examples(self, name: str, known: Tensor, limited: bool) -> None:
        """Refuse the observed values of all examples (a flat tensor), if the family cannot learn from them.

        limited: whether the network of the group keeps to `output_limits`.
        """
        return  # most can

    @abstractmethod
    def marginal_entropy(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Return the entropy in nats of each coordinate, `[*event]`, for these moments of encode(x)."""

    def store(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        """Convert a value to the type it is stored in."""
        return value.to(dtype)

    def values(self) -> Tensor:
        """Enumerate the values of a finite family, `[count, *shape]`."""
        raise InputError(f"{self} has no finite set of values")

    def expand(self, mask: Tensor) -> Tensor:
        """Reshape a mask over coordinates so that it broadcasts against encodings."""
        return mask

    def check_shape(self, name: str, value: Tensor) -> None:
        """Refuse a batch of the wrong shape."""
        if value.ndim == 0 or tuple(value.shape[1:]) != self.event_shape:
            expected = ", ".join(["batch", *map(str, self.event_shape)])
            hint = "; a single row needs its batch axis too" if tuple(value.shape) == self.event_shape else ""
            raise InputError(f"{name!r} must have shape [{expected}], found {list(value.shape)}{hint}")

    def check_known(self, name: str, known: Tensor) -> None:
        """Refuse observed values (a flat tensor) that are not numbers or that the family cannot take."""
        if known.is_floating_point() and not bool(known.isfinite().all()):
            raise InputError(
                f"{name!r} has NaN or infinite values that are marked as observed: mask them, or give "
                "Data.from_nan(values), where NaN means missing"
            )
        self.check_values(name, known)

    def check_stored(self, name: str, stored: Tensor) -> None:
        """Refuse observed values that were finite, and are not in the type that they are stored in."""
        if stored.is_floating_point() and not bool(stored.isfinite().all()):
            dtype = str(stored.dtype).removeprefix("torch.")
            raise InputError(f"{name!r} has a value that is too large for the model's {dtype}: scale the values")

    def describe(self) -> dict:
        """Describe the family as JSON: its class and its arguments."""
        return {"class": name_of(type(self)), **asdict(self)}


# --- Binary -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Binary(Family):
    """Describes a group of binary values, {0, 1}^shape, stored as floats.

    The network of the group returns logits `[batch, *shape]`.

    shape: the shape of one value, without the batch: a number, a tuple, or () for a scalar.
    """

    finite: ClassVar[bool] = True

    def distribution(self, output: Tensor, **shared: Tensor) -> Bernoulli:
        return Bernoulli(output)

    def random(self, batch: int, generator: Generator, dtype: torch.dtype) -> Tensor:
        empty = torch.empty(batch, *self.event_shape, dtype=dtype, device=generator.device)
        return uniform(empty, generator).lt_(0.5)

    def decide(self, mean: Tensor) -> Tensor:
        return (mean > 0.5).to(mean.dtype)

    def marginal_entropy(self, mean: Tensor, variance: Tensor) -> Tensor:
        return -(torch.xlogy(mean, mean) + torch.xlogy(1 - mean, 1 - mean))

    def check_values(self, name: str, known: Tensor) -> None:
        if known.dtype == torch.bool:
            return
        wrong = known[(known != 0) & (known != 1)]
        if len(wrong):
            raise InputError(f"{name!r} is binary: every observed value must be 0 or 1, found {float(wrong[0]):g}")

    def values(self) -> Tensor:
        return _grid(2, math.prod(self.event_shape)).to(torch.get_default_dtype()).view(-1, *self.event_shape)


# --- Categorical ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Categorical(Family):
    """Describes a group of classes, {0, ..., classes - 1}^shape, stored as indices. Networks read them one-hot.

    The network of the group returns logits `[batch, *shape, classes]`.

    classes: the number of classes, at least 2.
    shape: the shape of one value, without the batch: a number, a tuple, or () for one class per row.
    """

    classes: int = 2
    finite: ClassVar[bool] = True

    def __init__(self, classes: int, shape: int | Shape = ()):
        if not isinstance(classes, Integral) or not 2 <= classes <= MOST:
            raise InputError(f"Categorical needs a whole number of classes, at least 2, found {shown(classes)}")
        object.__setattr__(self, "classes", int(classes))
        object.__setattr__(self, "shape", shape)
        self.__post_init__()

    @property
    def encoding_shape(self) -> Shape:
        return (*self.event_shape, self.classes)

    @property
    def output_shape(self) -> Shape:
        return (*self.event_shape, self.classes)

    def encode(self, value: Tensor) -> Tensor:
        # F.one_hot makes whole numbers of eight bytes first, which is slow for label maps.
        classes = torch.arange(self.classes, device=value.device)
        return (value.unsqueeze(-1) == classes).to(torch.get_default_dtype())

    def distribution(self, output: Tensor, **shared: Tensor) -> Softmax:
        return Softmax(output)

    def random(self, batch: int, generator: Generator, dtype: torch.dtype) -> Tensor:
        return integers(self.classes, (batch, *self.event_shape), generator)

    def decide(self, mean: Tensor) -> Tensor:
        return mean.argmax(-1)

    def marginal_entropy(self, mean: Tensor, variance: Tensor) -> Tensor:
        return -torch.xlogy(mean, mean).sum(-1)

    def check_values(self, name: str, known: Tensor) -> None:
        if known.is_floating_point() and not bool((known == known.round()).all()):
            found = float(known[known != known.round()][0])
            raise InputError(
                f"{name!r} is categorical: classes are whole numbers from 0 to {self.classes - 1}, found {found:g}"
            )
        if known.dtype == torch.bool or not len(known):
            return
        low, high = (float(bound) for bound in known.aminmax())  # a type of 8 bits cannot be compared with 300 classes
        if low < 0 or high >= self.classes:
            raise InputError(f"{name!r} has classes 0 to {self.classes - 1}, found {low if low < 0 else high:g}")

    def store(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        # Unobserved entries may hold anything, but must be a valid index to be encoded.
        whole = value.nan_to_num().long() if value.is_floating_point() else value.long()
        return whole.clamp(0, self.classes - 1)

    def values(self) -> Tensor:
        return _grid(self.classes, math.prod(self.event_shape)).view(-1, *self.event_shape)

    def expand(self, mask: Tensor) -> Tensor:
        return mask.unsqueeze(-1)


# --- Real -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Real(Family):
    """Describes a group of real values, R^shape, Gaussian given the rest.

    The network of the group returns means `[batch, *shape]`; with scale="element", means and log-scales
    `[batch, 2, *shape]`.

    shape: the shape of one value, without the batch: a number, a tuple, or () for a scalar.
    scale: the standard deviation: "element" (an output of the network for every value), "coordinate" (one learned
        number per coordinate), "learned" (one learned number) or a fixed number.
    bounds: (low, high) of the mean, which is then a sigmoid of the network's output, with slope one in the middle. Give
        them where values are bounded, as pixels are: a chain then cannot leave them by more than its noise.
    initial_scale: the standard deviation before learning. Choose it small: latents collapse while the noise is too wide
        for them to be inferred from a redrawn value (see `diagnostics.latent_usage`).
    floor: the smallest standard deviation, since the likelihood has no upper bound.
    ceiling: the largest standard deviation. A low one makes latents, not noise, carry the variation. With "element" and
        no ceiling, a chain that leaves the data may reach ever wider noise and diverge. So `networks.mlp` then keeps
        the standard deviation below 2, or half the width of `bounds`, and the mean within 10 of zero if it has no
        bounds: scale the values to standard deviation 1.
    """

    scale: str | float = "element"
    initial_scale: float = 0.03
    floor: float = 1e-3
    ceiling: float | None = None
    bounds: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bounds is not None:
            _check_interval("bounds of Real", self.bounds)
        _check_scale("Real", self.scale)
        for what in ("initial_scale", "floor", *(() if self.ceiling is None else ("ceiling",))):
            object.__setattr__(self, what, as_float(f"{what} of Real", getattr(self, what)))
        if not self.initial_scale > self.floor > 0:
            raise InputError(f"Real needs initial_scale > floor > 0, found {self.initial_scale} and {self.floor}")
        if self.ceiling is not None and not self.initial_scale < self.ceiling < math.inf:
            raise InputError(f"Real needs a ceiling over initial_scale, found {self.ceiling} and {self.initial_scale}")

    def output_limits(self) -> list[list[float | None]] | None:
        if self.scale != "element" or self.ceiling is not None:
            return None
        widest, mean = WIDEST, FARTHEST
        if self.bounds is not None:  # no value within them varies more than half their width
            widest, mean = (self.bounds[1] - self.bounds[0]) / 2, math.inf
        low = math.log(self.floor)
        raw = _inverse_softplus(math.log(max(widest, 2 * self.initial_scale)) - low)
        raw -= _inverse_softplus(math.log(self.initial_scale) - low)
        return [[None, None] if mean == math.inf else [-mean, mean], [None, raw]]

    @property
    def output_shape(self) -> Shape:
        return (2, *self.event_shape) if self.scale == "element" else self.event_shape

    def shared_parameters(self) -> dict[str, Tensor]:
        return _shared_scale(self.scale, self.event_shape)

    def distribution(self, output: Tensor, **shared: Tensor) -> Gaussian:
        if self.scale == "element":
            return Gaussian(self._mean(output[:, 0]), self._bounded(output[:, 1]))
        if self.scale in ("learned", "coordinate"):
            return Gaussian(self._mean(output), self._bounded(GAIN * shared["log_scale"]))
        fixed = torch.full((), math.log(float(self.scale)), dtype=output.dtype, device=output.device)
        return Gaussian(self._mean(output), fixed)

    def _mean(self, raw: Tensor) -> Tensor:
        if self.bounds is None:
            return raw
        low, high = self.bounds
        return low + (high - low) * torch.sigmoid((4 * raw - 2 * (low + high)) / (high - low))

    def _bounded(self, raw: Tensor) -> Tensor:
        return _log_scale(raw, self.initial_scale, self.floor, self.ceiling)

    def random(self, batch: int, generator: Generator, dtype: torch.dtype) -> Tensor:
        return normal(torch.empty(batch, *self.event_shape, dtype=dtype, device=generator.device), generator)

    def decide(self, mean: Tensor) -> Tensor:
        return mean

    def marginal_entropy(self, mean: Tensor, variance: Tensor) -> Tensor:
        # The entropy of the Gaussian with these moments: no mixture with them has a larger one.
        return 0.5 * (1 + LOG_2PI + variance.log())

    def check_values(self, name: str, known: Tensor) -> None:
        """Accept any finite number."""

    def check_examples(self, name: str, known: Tensor, limited: bool) -> None:
        if limited and self.bounds is None:
            _check_unit(name, known, FARTHEST, "ceiling=")


# --- Truncated --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Truncated(Family):
    """Describes a group of real values within limits, [low, high]^shape: positive numbers, ages, shares.

    Given the rest, they have a Gaussian law without what is beyond the limits. No draw leaves them. The network of the
    group returns the locations of the Gaussians `[batch, *shape]`; with scale="element", locations and log-scales
    `[batch, 2, *shape]`. A location may be beyond a limit: the density then falls off from it.

    Scale the values to a standard deviation of about 1, for the networks that read them, and the limits with them.

    shape: the shape of one value, without the batch: a number, a tuple, or () for a scalar.
    support: (low, high), the limits of the values. One of them may be None: (0, None) is for positive numbers.
    scale: the standard deviation of the Gaussian, as in `Real`.
    initial_scale: the standard deviation before learning. The default is 0.03 for standard deviations near 1, or the
        same share of half the width of the support.
    floor: the smallest standard deviation; 0.001 in the same way.
    ceiling: the largest standard deviation; 5 in the same way. It is that of the whole Gaussian, of which the support
        may show only a flank.
    """

    support: tuple[float | None, float | None] = (None, None)
    scale: str | float = "element"
    initial_scale: float = AUTO
    floor: float = AUTO
    ceiling: float = AUTO

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_support(self.support)
        for what, share in (("initial_scale", 0.03), ("floor", 1e-3), ("ceiling", 5.0)):
            found = getattr(self, what)
            auto = isinstance(found, str) and found == AUTO
            object.__setattr__(self, what, share * self.unit if auto else as_float(f"{what} of Truncated", found))
        _check_scale("Truncated", self.scale)
        if not 0 < self.floor < self.initial_scale < self.ceiling < math.inf:
            found = f"{self.floor}, {self.initial_scale} and {self.ceiling}"
            raise InputError(f"Truncated needs 0 < floor < initial_scale < ceiling, found {found}")
        limit = next(end for end in self.support if end is not None)
        if None in self.support and not abs(limit) < self.reach:
            raise InputError(
                f"the limit {limit:g} of Truncated is too far from 0 for a ceiling of {self.ceiling:g}: "
                "scale the values to standard deviation 1"
            )

    @property
    def unit(self) -> float:
        """Half the width of the support; 1 if it has no end."""
        low, high = self.support
        return 1.0 if low is None or high is None else (high - low) / 2

    @property
    def reach(self) -> float:
        """How far locations are from the middle of the support, or from 0 if it has no end."""
        return 2 * (self.ceiling if None in self.support else self.unit)

    @property
    def output_shape(self) -> Shape:
        return (2, *self.event_shape) if self.scale == "element" else self.event_shape

    def shared_parameters(self) -> dict[str, Tensor]:
        return _shared_scale(self.scale, self.event_shape)

    def distribution(self, output: Tensor, **shared: Tensor) -> TruncatedGaussian:
        location = output[:, 0] if self.scale == "element" else output
        if self.scale in ("learned", "coordinate"):
            log_scale = self._bounded(GAIN * shared["log_scale"])
        elif self.scale == "element":
            log_scale = self._bounded(output[:, 1])
        else:
            log_scale = torch.full((), math.log(float(self.scale)), dtype=output.dtype, device=output.device)
        return TruncatedGaussian(self._location(location), log_scale, *self.support)

    def _location(self, raw: Tensor) -> Tensor:
        """Slope `unit` in the middle."""
        low, high = self.support
        middle = 0.0 if low is None or high is None else (low + high) / 2
        return middle + self.reach * torch.tanh(raw * (self.unit / self.reach))

    def _bounded(self, raw: Tensor) -> Tensor:
        return _log_scale(raw, self.initial_scale, self.floor, self.ceiling)

    def random(self, batch: int, generator: Generator, dtype: torch.dtype) -> Tensor:
        low, high = self.support
        empty = torch.empty(batch, *self.event_shape, dtype=dtype, device=generator.device)
        if low is None or high is None:
            size = normal(empty, generator).abs()
            return size + low if high is None and low is not None else -size + (high or 0.0)
        return (low + (high - low) * uniform(empty, generator)).clamp(low, high)

    def decide(self, mean: Tensor) -> Tensor:
        return mean

    def marginal_entropy(self, mean: Tensor, variance: Tensor) -> Tensor:
        gaussian = 0.5 * (1 + LOG_2PI + variance.log())
        return gaussian if None in self.support else gaussian.clamp(max=math.log(2 * self.unit))

    def check_values(self, name: str, known: Tensor) -> None:
        low, high = self.support
        outside = torch.zeros_like(known, dtype=torch.bool)
        outside = outside if low is None else outside | (known < low)
        outside = outside if high is None else outside | (known > high)
        if bool(outside.any()):
            limits = f"at least {low:g}" if high is None else f"at most {high:g}"
            limits = limits if None in self.support else f"from {low:g} to {high:g}"
            raise InputError(f"{name!r} takes values {limits}, found {float(known[outside][0]):g}")

    def check_examples(self, name: str, known: Tensor, limited: bool) -> None:
        if None in self.support:
            _check_unit(name, known, self.reach, "ceiling=")


# --- what families share ----------------------------------------------------------------------------------------


def _log_scale(raw: Tensor, initial: float, floor: float, ceiling: float | None) -> Tensor:
    """Zero maps to log(initial); smoothly bounded by log(floor) and, if there is one, log(ceiling)."""
    low = math.log(floor)
    gap = math.log(initial) - low
    if ceiling is None:
        return low + F.softplus(raw + _inverse_softplus(gap))
    width = math.log(ceiling) - low
    return low + width * torch.sigmoid(raw + math.log(gap / (width - gap)))


def _inverse_softplus(number: float) -> float:
    return math.log(math.expm1(number)) if number < 700 else number


def _shared_scale(scale: str | float, event_shape: Shape) -> dict[str, Tensor]:
    """The parameter of a scale that does not depend on the rest."""
    shapes: dict[str | float, Shape] = {"learned": (), "coordinate": event_shape}
    return {"log_scale": torch.zeros(shapes[scale])} if scale in shapes else {}


def _check_scale(family: str, scale: Any) -> None:
    word = isinstance(scale, str) and scale in ("element", "coordinate", "learned")
    fixed = isinstance(scale, (int, float)) and not isinstance(scale, bool) and 0 < scale <= LARGEST
    if not (word or fixed):
        raise InputError(
            f'scale of {family} must be "element", "coordinate", "learned" or a positive number, found {shown(scale)}'
        )


def _check_unit(name: str, known: Tensor, reach: float, own: str) -> None:
    """Refuse values of another unit. By Chebyshev's inequality, too few of standard deviation 1 are so far from 0."""
    share = float((known.abs() > reach).double().mean()) if known.numel() else 0.0
    if share > FARTHEST**-2:
        raise InputError(
            f"{share:.1%} of the values of {name!r} are farther than {reach:g} from 0, where its family has no means: "
            f"scale them to mean 0 and standard deviation 1, or give {own} in their units"
        )


def _check_interval(what: str, found: Any) -> None:
    """Refuse what is not a low and a high number."""
    if not (isinstance(found, tuple) and len(found) == 2 and all(map(_is_number, found)) and found[0] < found[1]):
        raise InputError(f"{what} are a low and a high number, found {shown(found)}")


def _check_support(found: Any) -> None:
    """Refuse what is not a low and a high number, of which one may be None."""
    known = [end for end in found if end is not None] if isinstance(found, tuple) and len(found) == 2 else []
    if not known or not all(map(_is_number, known)) or (len(known) == 2 and not known[0] < known[1]):
        raise InputError(
            f"support of Truncated is (low, high), of which one may be None, found {found!r}; without limits use Real"
        )


def _is_number(found: Any) -> bool:
    try:
        return isinstance(found, (int, float)) and not isinstance(found, bool) and math.isfinite(found)
    except OverflowError:  # a whole number of hundreds of digits
        return False


def is_class(family: Family) -> bool:
    """Return whether a group is one class per row."""
    return isinstance(family, Categorical) and family.event_shape == ()


def _grid(classes: int, length: int) -> Tensor:
    """Enumerate all sequences of `length` classes in lexicographic order, `[classes**length, length]`."""
    if length * math.log2(classes) > 16:
        raise InputError(f"{classes}^{length} values are too many to enumerate (at most 2^16)")
    index = torch.arange(classes**length).unsqueeze(-1)
    return index.div(classes ** torch.arange(length - 1, -1, -1), rounding_mode="floor").remainder(classes)


def family_from(description: dict) -> Family:
    """Rebuild a family from `Family.describe`; any imported subclass of `Family` is found."""
    arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in description.items() if k != "class"}
    return class_named(Family, description["class"])(**arguments)
