"""Checkpoints: a run that was cut off, by plan, by Ctrl-C or by a crash, goes on bit for bit; what does not fit is
refused and changes nothing."""

import json
import os
import signal
import threading

import pytest
import rich.progress
import torch
from helpers import learner_of, random_tables, still, table_model
from torch import nn

import paracond as pc
from paracond import serialization as storage
from paracond.experiments.faces.init_rows import InitRows
from paracond.experiments.faces.slow_rows import SlowRows
from paracond.runtime import progress
from paracond.training import checkpoints

VARIABLES = {"x": pc.Real(3, scale="learned"), "c": pc.Categorical(3), "z": pc.Binary(4)}
STALE = (
    "first",
    "count",
    "turn",
    "weight",
)  # set anew before each use: which rows come next, their weight in the average
gpu = pytest.mark.gpu


class Dropping(nn.Module):
    """A network that draws from torch's own random state, and whose buffers (one is in no state_dict) move."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, outputs))
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, others):
        self.calls += 1
        out = self.layers(torch.cat([value.flatten(1) for value in others.values()], 1))
        return out + 1e-3 * self.calls


def data(rows=64, hidden_labels=0.5):
    generator = torch.Generator().manual_seed(1)
    state = {"x": torch.rand(rows, 3, generator=generator), "c": torch.randint(3, (rows,), generator=generator)}
    return pc.datasets.hide(pc.Data(state), {"c": hidden_labels})


def make(seed=0, hidden=8, batch_size=16, rows=64, hidden_labels=0.5, variables=VARIABLES, with_init=False, **options):
    """A learner with initial weights and choices by `seed`; `with_init`, x has an initializer."""
    torch.manual_seed(seed)
    networks = {n: pc.networks.mlp(variables, n, hidden=hidden) for n in variables}
    networks["c"] = Dropping(7, 3)
    inits = {"x": pc.initializers.pca(variables, "x", ["c"], 2)} if with_init else {}
    conditionals = {n: pc.Conditional(variables[n], network, inits.get(n)) for n, network in networks.items()}
    model = pc.JointModel(conditionals)
    schedules = {
        "chain_length": pc.schedules.linear(2, 5, 30),
        "learning_rate": pc.schedules.cosine(0.01, 0.001, 40),
        "average": 0.9,
    }
    return learner_of(model, data(rows, hidden_labels), batch_size=batch_size, seed=seed, **(schedules | options))


def flat(value, place=""):
    """Everything in a nested structure, by place, with tensors as they are."""
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in flat(item, f"{place}/{key}").items()}
    if isinstance(value, (list, tuple)):
        return flat(dict(enumerate(value)), place)
    return {place: value.detach().clone() if isinstance(value, torch.Tensor) else value}


def plain(part):
    """The numbers and tensors of an object."""
    return {n: v for n, v in vars(part).items() if isinstance(v, (int, float, torch.Tensor))}


def picture(learner):
    """All that a learner has, independently of what `checkpoints` thinks it has."""
    weights = {"model": learner.model, "averaged": learner.averaged}
    return flat(
        {
            **{n: dict([*m.named_parameters(), *m.named_buffers()]) for n, m in weights.items()},
            "optimisers": {n: o.state_dict() for n, o in learner.optimisers.items()},
            "host": learner.host.get_state(),
            "generator": learner.generator.get_state(),
            "torch": torch.get_rng_state(),
            "last": learner.scan.last,
            **plain(learner),
            "completion": plain(learner.completion),
            "guard": plain(learner.guard),
            "updates": learner.updates,
            "batch": plain(learner.batch) | {n: getattr(learner.batch, n) for n in ("state", "redrawn")},
            "init rows": picture_init_rows(learner.batch) if hasattr(learner.batch, "init_rows") else None,
            "pool": {n: getattr(learner.completion, n) for n in ("pool", "mask", "redrawn", "kept", "turns")},
            "source": None if learner.source is learner.completion else picture_async(learner.source),
        }
    )


def picture_init_rows(batch):
    return plain(batch.init_rows) | {n: getattr(batch.init_rows, n) for n in ("truth", "known")}


def picture_async(source):
    return {
        "model": dict([*source.copy.named_parameters(), *source.copy.named_buffers()]),
        "generator": source.generator.get_state(),
        "guard": plain(source.completion.resources.guard),
        **plain(source),
        "pool": source.pool,
        "redrawn": source.redrawn,
    }


def places(learner):
    """Where the tensors are that a checkpoint must fill in place."""
    tensors = {}
    checkpoints._pack(learner.state_dict(), "", tensors)
    kinds = ("/random/", "/optimisers/", "/source/order", "/source/random", "/source/completion/order")
    return {n: t.data_ptr() for n, t in tensors.items() if not n.startswith(kinds)}


def assert_same(one, two, but=()):
    assert one.keys() == two.keys()
    for name, a in one.items():
        stale = name.lstrip("/") in but or (name.rpartition("/")[2] in but and "init rows" not in name)
        if not stale:
            assert torch.equal(a, two[name]) if isinstance(a, torch.Tensor) else a == two[name], name


OPTIONS = [
    {"form": form, "draw": draw, "skip_redrawn": skip}
    for form, draw, skip in [
        ("running", "before", True),
        ("running", "after", True),
        ("literal", "before", False),
        ("literal", "after", True),
    ]
]


def some(rows, generator, device):
    """What a question holds of x: some coordinates."""
    return torch.rand(rows, 3, generator=generator, device=device) < 0.5


INIT_ROWS = [
    InitRows(0.25, "x", some),
    InitRows(0.125, "x", some, after=9),
    InitRows(0.125, "x", some, times=30.0),
]
OPTIONS += [
    {"warm": ["c", "z"], "steps": 2},
    {"parallel": True, "steps": 3},
    {"by": "average", "steps": 2},
    {"slow": SlowRows(0.4, 20)},
    {"with_init": True, "init_rows": INIT_ROWS, "parallel": True},
    {"parallel": True, "steps": 2, "warm": ["c", "z"], "draw": "after"},
    {"parallel": True, "form": "literal", "batch_size": 100, "chain_length": 5},
    {"scan": "systematic", "learning_rate": None, "chain_length": 2.5, "form": "literal", "steps": 2},
    {"scan": "random", "optimiser": lambda name, ps: torch.optim.SGD(ps, lr=0.01, momentum=0.9), "learning_rate": 1e-6},
    {"optimiser": lambda name, parameters: torch.optim.AdamW(parameters, amsgrad=True, foreach=True)},
    {"optimiser": lambda name, parameters: torch.optim.Adagrad(parameters, lr=0.01), "batch_size": 100},
]


@pytest.mark.parametrize("options", OPTIONS, ids=range(len(OPTIONS)))
def test_a_run_goes_on_bit_for_bit(options, tmp_path):
    whole = make(**options)
    whole.fit(40)
    expected = picture(whole)
    first = make(**options)
    first.fit(17)
    checkpoints.save(first, tmp_path)
    at_save = picture(first)
    second = make(seed=5, **options)  # other weights, other random states
    before = places(second)
    checkpoints.restore(second, tmp_path)
    assert_same(picture(second), at_save, but=STALE)
    assert before == places(second)
    second.fit(23)
    assert_same(picture(second), expected)
    assert second.step_count == 40


def test_a_run_goes_on_from_any_moment_in_the_making_of_a_pool(tmp_path):
    options = {"parallel": True, "steps": 3}
    whole, stages = make(**options), []
    whole.fit(30)
    expected = picture(whole)
    for step in range(14, 22):
        first = make(**options)
        first.fit(step)
        stages.append((first.source.left, len(first.completion.turns)))
        checkpoints.save(first, tmp_path)
        second = make(seed=5, **options)
        checkpoints.restore(second, tmp_path)
        second.fit(30 - step)
        assert_same(picture(second), expected)
    assert {turns for _, turns in stages} >= {0, 2, 4} and any(0 < left < 16 for left, _ in stages)


@pytest.mark.parametrize("parallel", [False, True])
def test_saving_changes_nothing(parallel, tmp_path):
    learner = make(parallel=parallel)
    learner.fit(7)
    before = picture(learner)
    checkpoints.save(learner, tmp_path)
    assert_same(picture(learner), before)


def test_an_optimiser_keeps_settings_that_a_program_has_changed(tmp_path):
    learner = make(learning_rate=None)
    learner.optimisers["x"].param_groups[0].update(lr=0.5, betas=(0.5, 0.6))
    checkpoints.save(learner, tmp_path)
    other = make(seed=1, learning_rate=None)
    checkpoints.restore(other, tmp_path)
    group = other.optimisers["x"].param_groups[0]
    assert group["lr"] == 0.5 and group["betas"] == (0.5, 0.6)
    assert group["params"] is not learner.optimisers["x"].param_groups[0]["params"]


class Convolving(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(2, 2, 3, padding=1).to(memory_format=torch.channels_last)

    def forward(self, others):
        return self.layer(others["y"])


def test_optimisers_keep_their_own_form(tmp_path):
    """Layout in memory, rates as tensors and how steps are computed are an engine's choice; the rest is state."""

    def convolving(seed, rate, **options):
        torch.manual_seed(seed)
        families = {"x": pc.Real((2, 4, 4), scale=1.0), "y": pc.Real((2, 4, 4), scale=1.0)}
        still = pc.networks.mlp(families, "y", hidden=4)
        model = pc.JointModel(
            {"x": pc.Conditional(families["x"], Convolving()), "y": pc.Conditional(families["y"], still)}
        )
        return learner_of(
            model,
            pc.Data({n: torch.rand(8, 2, 4, 4, generator=torch.Generator().manual_seed(1)) for n in "xy"}),
            batch_size=8,
            seed=seed,
            optimiser=lambda name, parameters: torch.optim.Adam(parameters, lr=rate, **options),
        )

    learner = convolving(0, 0.125, fused=True)
    checkpoints.fit(learner, 4, tmp_path)
    other = convolving(1, torch.tensor(0.5), fused=True)
    checkpoints.restore(other, tmp_path)
    optimiser, weight = other.optimisers["x"], other.model.conditional("x").network.layer.weight
    (group,) = optimiser.param_groups
    assert isinstance(group["lr"], torch.Tensor) and float(group["lr"]) == 0.125
    moment, former = optimiser.state[weight]["exp_avg"], learner.optimisers["x"].state_dict()["state"][0]["exp_avg"]
    assert moment.stride() == weight.stride() != moment.contiguous().stride() and torch.equal(moment, former)
    checkpoints.fit(other, 8, tmp_path / "on")
    third = convolving(2, 0.5, foreach=True)
    checkpoints.restore(third, tmp_path / "on")
    (group,) = third.optimisers["x"].param_groups
    assert group["foreach"] and not group["fused"] and group["lr"] == 0.125 and isinstance(group["lr"], float)
    third.fit(4)


# --- crashes ----------------------------------------------------------------------------------------------------


class Crash(Exception):
    pass


def crash_at(monkeypatch, owner, what, call):
    """Let the `call`-th use of a function fail, before it has done anything."""
    original, count = getattr(owner, what), 0

    def crashing(*args, **kwargs):
        nonlocal count
        count += 1
        if count == call:
            raise Crash
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, what, crashing)


@pytest.mark.parametrize(
    "what, call, survivor",
    [
        ("mkdir", 1, 5),
        ("save", 1, 5),
        ("fsync", 1, 5),  # the new tensors are written, under a temporary name
        ("replace", 1, 5),
        ("fsync", 2, 5),  # ... under their own name
        ("fsync", 3, 5),  # the new description is written, under a temporary name
        ("replace", 2, 5),
        ("fsync", 4, 8),  # ... under its own
        ("unlink", 1, 8),  # the former tensors are still there
    ],
)
def test_a_crash_at_any_instant_leaves_a_whole_checkpoint(what, call, survivor, tmp_path, monkeypatch):
    learner, pictures = make(), {}
    for steps in (5, 3):
        learner.fit(steps)
        pictures[learner.step_count] = picture(learner)
        if steps == 5:
            checkpoints.save(learner, tmp_path)
    owner = {"mkdir": storage.Path, "unlink": storage.Path, "save": storage}.get(what, storage.os)
    with monkeypatch.context() as patched:
        crash_at(patched, owner, what, call)
        with pytest.raises(Crash):
            checkpoints.save(learner, tmp_path)
    again = make(seed=1)
    checkpoints.restore(again, tmp_path)
    assert_same(picture(again), pictures[survivor], but=STALE)
    checkpoints.save(again, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2  # nothing is left lying about


# --- what is refused --------------------------------------------------------------------------------------------


def damage_tensors(folder):
    (path,) = folder.glob("*.safetensors")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def edit(folder, change):
    path = folder / storage.DESCRIPTION
    description = json.loads(path.read_text())
    change(description)
    path.write_bytes(storage.seal(description))


SMALL = VARIABLES | {"z": pc.Binary(5)}
NAMED = {"x": VARIABLES["x"], "c": VARIABLES["c"], "y": VARIABLES["z"]}


@pytest.mark.parametrize(
    "options, message",
    [
        ({"batch_size": 8}, "batch size is 16 there and 8 here"),
        ({"rows": 80}, "number of examples is 64 there and 80 here"),
        ({"hidden_labels": 0.4}, "digest of the examples is .* there and .* here"),
        ({"hidden": 9}, r"tensor '/model/conditionals\.0.*' is float32 \[.*8.*\] there and float32 \[.*9.*\] here"),
        ({"variables": SMALL}, "variable 'z' is .*4.* there and .*5.* here"),
        ({"variables": NAMED}, "variable 'y' is absent there"),
        ({"optimiser": still}, "optimiser of 'x' is Adam of .* there and SGD of .* here"),
        ({"parallel": True}, "completion is Completion there and AsyncCompletion here"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(options, message, tmp_path):
    learner = make()
    learner.fit(3)
    checkpoints.save(learner, tmp_path)
    assert_refused(make(seed=1, **options), tmp_path, f"is of another run: {message}")


def test_async_completion_is_not_left_off_on_the_way(tmp_path):
    learner = make(parallel=True)
    learner.fit(3)
    checkpoints.save(learner, tmp_path)
    assert_refused(make(seed=1), tmp_path, "completion is AsyncCompletion there and Completion here")


@pytest.mark.parametrize(
    "damage, message",
    [
        (damage_tensors, r"weights-\w+.safetensors is damaged"),
        (lambda folder: next(folder.glob("*.safetensors")).unlink(), "is missing, though model.json names it"),
        (lambda folder: edit(folder, lambda d: d.pop("state")), "model.json is damaged"),
        (lambda folder: edit(folder, lambda d: d.update(format="x")), "has format 'x', expected 'paracond checkpoint"),
        (lambda folder: (folder / storage.DESCRIPTION).write_text("{"), "model.json is damaged"),
        (lambda folder: (folder / storage.DESCRIPTION).unlink(), "there is no checkpoint in"),
    ],
)
def test_a_damaged_checkpoint_is_refused(damage, message, tmp_path):
    checkpoints.save(make(), tmp_path)
    damage(tmp_path)
    assert_refused(make(seed=1), tmp_path, message)


def assert_refused(learner, folder, message):
    before = picture(learner)
    with pytest.raises(pc.InputError, match=message) as error:
        checkpoints.restore(learner, folder)
    assert "\n" not in str(error.value)
    assert_same(picture(learner), before)


def test_only_a_new_learner_is_restored(tmp_path):
    learner = make()
    learner.fit(2)
    checkpoints.save(learner, tmp_path)
    assert_refused(learner, tmp_path, "restored into a new learner; this one is at step 2")


def test_a_saved_model_is_not_overwritten(tmp_path):
    model = table_model(random_tables((2, 3), 0))
    model.save(tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for attempt in (checkpoints.save, lambda learner, folder: checkpoints.fit(learner, 2, folder, resume=True)):
        learner = make()
        with pytest.raises(pc.InputError, match="has format 'paracond model 2', expected 'paracond checkpoint 3'"):
            attempt(learner, tmp_path)
        assert learner.step_count == 0
        assert files == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_an_optimiser_that_cannot_be_written_is_refused(tmp_path):
    learner = make(optimiser=still)
    learner.optimisers["x"].param_groups[0]["secret"] = object()
    with pytest.raises(pc.InputError, match="has a object, which a checkpoint cannot hold"):
        checkpoints.save(learner, tmp_path)
    assert not checkpoints.exists(tmp_path)


# --- fit --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def forty():
    learner = make()
    learner.fit(40)
    return picture(learner)


def resumed(folder, steps=40):
    learner = make(seed=3)
    assert checkpoints.fit(learner, steps, folder, resume=True)
    return picture(learner)


def test_fit_is_a_run_with_checkpoints(tmp_path, forty):
    learner, seen = make(), []
    assert checkpoints.fit(learner, 40, tmp_path, every=0, on_step=lambda info: seen.append(info.step))
    assert seen == list(range(1, 41))
    assert_same(picture(learner), forty)
    assert_same(resumed(tmp_path), forty, but=STALE)  # nothing is left to do
    without = make()
    assert checkpoints.fit(without, 40)
    assert_same(picture(without), forty)


def test_checkpoints_are_written_every_so_often(tmp_path, monkeypatch):
    """A clock on which every update takes a second."""
    learner, saved = make(), []
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: float(learner.step_count))
    monkeypatch.setattr(checkpoints, "save", lambda learner, folder: saved.append(learner.step_count))
    assert not checkpoints.fit(learner, 40, tmp_path, every=10, minutes=0.6)
    assert saved == [10, 20, 30, 36]


def test_a_time_box_ends_cleanly_and_can_be_continued(tmp_path, forty):
    learner = make()
    assert not checkpoints.fit(learner, 40, tmp_path, minutes=0)
    assert learner.step_count == 0 and checkpoints.exists(tmp_path)
    learner = make(seed=1)
    assert checkpoints.fit(learner, 11, tmp_path, resume=True, minutes=10)
    assert_same(resumed(tmp_path), forty)


def test_resuming_without_a_checkpoint_starts_afresh(tmp_path, forty):
    learner = make()
    assert checkpoints.fit(learner, 40, tmp_path / "new", resume=True)
    assert_same(picture(learner), forty)


def test_an_existing_checkpoint_is_not_overwritten(tmp_path, forty):
    checkpoints.fit(make(), 5, tmp_path)
    learner = make(seed=1)
    with pytest.raises(pc.InputError, match=r"has a checkpoint: continue it with resume=True, or give"):
        checkpoints.fit(learner, 5, tmp_path)
    assert learner.step_count == 0
    assert_same(resumed(tmp_path), forty)
    with pytest.raises(pc.InputError, match="resume=True needs folder="):
        checkpoints.fit(make(), 5, resume=True)


def interrupt(at, times=1):
    def on_step(info):
        for _ in range(times if info.step == at else 0):
            os.kill(os.getpid(), signal.SIGINT)

    return on_step


@pytest.fixture
def hears_control_c():
    """The tests may run where Ctrl-C is ignored, as under nohup."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.usefixtures("hears_control_c")
def test_control_c_writes_a_checkpoint_first(tmp_path, forty):
    handler, learner = signal.getsignal(signal.SIGINT), make()
    with pytest.raises(KeyboardInterrupt, match="stopped at step 9; the checkpoint is in"):
        checkpoints.fit(learner, 40, tmp_path, on_step=interrupt(9))
    assert learner.step_count == 9 and signal.getsignal(signal.SIGINT) is handler
    assert_same(resumed(tmp_path), forty)


@pytest.mark.usefixtures("hears_control_c")
def test_a_second_control_c_interrupts_at_once(tmp_path, forty):
    handler, learner = signal.getsignal(signal.SIGINT), make()
    checkpoints.fit(learner, 4, tmp_path)
    again = make(seed=1)
    with pytest.raises(KeyboardInterrupt) as error:
        checkpoints.fit(again, 40, tmp_path, resume=True, on_step=interrupt(9, times=2))
    assert not str(error.value) and signal.getsignal(signal.SIGINT) is handler
    state = json.loads((tmp_path / storage.DESCRIPTION).read_text())["state"]["learner"]
    assert dict(state["pairs"])["step_count"] == 4
    assert_same(resumed(tmp_path), forty)


def test_without_a_folder_control_c_is_left_alone():
    handler, seen = signal.getsignal(signal.SIGINT), []
    checkpoints.fit(make(), 1, on_step=lambda info: seen.append(signal.getsignal(signal.SIGINT)))
    assert seen == [handler]


def test_other_threads_and_ignored_signals_are_left_alone(tmp_path):
    handler, seen = signal.getsignal(signal.SIGINT), []

    def work(folder):
        checkpoints.fit(make(), 1, folder, on_step=lambda info: seen.append(signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work, args=(tmp_path / "thread",))
    thread.start()
    thread.join()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        work(tmp_path / "ignoring")
    finally:
        signal.signal(signal.SIGINT, handler)
    assert seen == [handler, signal.SIG_IGN]


def test_a_nonfinite_state_leaves_the_last_checkpoint_and_has_its_own(tmp_path):
    learner = make()
    checkpoints.fit(learner, 6, tmp_path)
    kept = picture(learner)

    def ruin(info):
        if info.step == 12:
            with torch.no_grad():
                next(again.model.conditional("x").parameters()).fill_(float("nan"))

    again = make(seed=1)
    with pytest.raises(pc.NonFiniteError) as error:
        checkpoints.fit(again, 40, tmp_path, resume=True, on_step=ruin)
    assert "nonfinite" in error.value.__notes__[0]
    last = make(seed=2)
    checkpoints.restore(last, tmp_path)
    assert_same(picture(last), kept, but=STALE)
    broken = make(seed=2)
    checkpoints.restore(broken, tmp_path / checkpoints.NONFINITE)
    assert 12 <= broken.step_count < 40


def test_a_nonfinite_state_that_was_not_yet_noticed_is_not_saved(tmp_path):
    """Recorded programs only write it down."""
    learner = make()
    learner.guard.first.copy_(torch.tensor([0, 1, 0]))
    with pytest.raises(pc.NonFiniteError, match="the loss of 'c' is not finite at step 0"):
        checkpoints.save(learner, tmp_path)
    assert not checkpoints.exists(tmp_path)


def test_a_nonfinite_state_of_parallel_completion_that_was_not_yet_noticed_is_not_saved(tmp_path):
    learner = make(parallel=True)
    learner.fit(3)
    learner.completion.resources.guard.first.copy_(torch.tensor([2, 1, 3]))
    with pytest.raises(pc.NonFiniteError, match="a completion of 'c' is not finite at step 2"):
        checkpoints.fit(learner, 3, tmp_path)
    assert not checkpoints.exists(tmp_path) and checkpoints.exists(tmp_path / checkpoints.NONFINITE)


def test_progress_counts_what_was_done_before(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    checkpoints.fit(make(), 30, tmp_path)
    bars = []
    original = rich.progress.Progress.update
    monkeypatch.setattr(rich.progress.Progress, "update", lambda s, t, **k: bars.append(k) or original(s, t, **k))
    checkpoints.fit(make(), 35, tmp_path, resume=True, progress=True)
    assert [bar["completed"] for bar in bars] == [30, 31, 32, 33, 34]
    assert all(bar["rate"].endswith("/s") for bar in bars)


# --- on a GPU ---------------------------------------------------------------------------------------------------


def pictures_learner(seed, engine, parallel):
    torch.manual_seed(seed)
    variables = {"x": pc.Real((1, 12, 12), scale="learned"), "c": pc.Categorical(3)}
    networks = {n: pc.networks.image_network(variables, n, width=8, kind="residual") for n in variables}
    model = pc.JointModel({n: pc.Conditional(variables[n], net) for n, net in networks.items()}).to("cuda")
    generator = torch.Generator().manual_seed(0)
    c = torch.randint(3, (256,), generator=generator)
    x = torch.rand(256, 1, 12, 12, generator=generator) * 0.1 + c.view(-1, 1, 1, 1) / 3
    given = pc.datasets.hide(pc.Data({"x": x, "c": c}), {"c": 0.5})
    return learner_of(model, given, batch_size=64, engine=engine, seed=seed, parallel=parallel)


@gpu
@pytest.mark.parametrize("before", ["eager", "graphs"])
@pytest.mark.parametrize("after", ["eager", "graphs"])
@pytest.mark.parametrize("parallel", [False, True])
def test_recorded_programs_advance_from_a_checkpoint(before, after, parallel, tmp_path):
    """Whatever the engines, the state is the same (but for how optimisers compute), and learning goes on."""
    first, second = pictures_learner(0, before, parallel), pictures_learner(1, after, parallel)
    assert checkpoints.fit(first, 60, tmp_path)
    checkpoints.restore(second, tmp_path)
    one, two = picture(first), picture(second)
    assert_same(one, two, but=(*STALE, *(name.lstrip("/") for name in one if "param_groups" in name)))
    losses = [[], []]
    for learner, found in zip((first, second), losses, strict=True):
        assert checkpoints.fit(learner, 160, on_step=found.append)
    assert [info.variable for info in losses[0]] == [info.variable for info in losses[1]]
    ends = [torch.stack([i.loss for i in found[-40:] if i.variable == "x"]).mean() for found in losses]
    assert float(ends[0]) == pytest.approx(float(ends[1]), abs=0.1 * 144)
