"""Saved folders: every byte counts, one writer at a time, nothing is trusted before it was compared, and names of
classes mean one class."""

import errno
import functools
import hashlib
import json
import os
import struct
import threading

import pytest
import torch
from safetensors.torch import save
from torch import nn

import paracond as pc
from paracond import model as joint
from paracond import serialization as storage
from paracond.networks import outline
from paracond.training import checkpoints

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([1, 2])}
VARIABLES = {"a": pc.Binary(3), "b": pc.Binary(3)}


def make(hidden=4, **options):
    networks = {n: pc.networks.mlp(VARIABLES, n, hidden=hidden, depth=1) for n in VARIABLES}
    return pc.JointModel({n: pc.Conditional(VARIABLES[n], networks[n]) for n in VARIABLES}, **options)


def learner(seed=0, **options):
    torch.manual_seed(seed)
    rows = torch.randint(2, (16, 3), generator=torch.Generator().manual_seed(1)).float()
    return pc.Learner(make(), pc.Data({"a": rows}), batch_size=4, seed=seed, **options)


def put(folder, tensors=TENSORS, **description):
    storage.write(folder, {"format": "test 1", **description}, tensors)


def get(folder, check=None):
    return storage.read(folder, "test 1", check)


def reseal(folder, change):
    """Change a description, with a digest of its own again."""
    path = folder / storage.DESCRIPTION
    description = json.loads(path.read_text())
    change(description)
    path.write_bytes(storage.seal(description))


def with_weights(folder, payload):
    """Put other bytes where the weights are, with a digest that fits."""
    (path,) = folder.glob("*.safetensors")
    path.write_bytes(payload)
    reseal(folder, lambda d: d.update(sha256=hashlib.sha256(payload).hexdigest()))


def with_header(folder, header, rest=b""):
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    with_weights(folder, struct.pack("<Q", len(text)) + text + rest)


def temporary_files(folder):
    return [path.name for path in folder.iterdir() if path.name.endswith(".part")]


# --- digests ----------------------------------------------------------------------------------------------------


def test_what_was_written_is_read(tmp_path):
    put(tmp_path, more={"deep": [1, 2.5, None, "ü"]})
    description, tensors = get(tmp_path)
    assert description["more"] == {"deep": [1, 2.5, None, "ü"]} and "digest" not in description
    assert tensors.keys() == TENSORS.keys() and all(torch.equal(tensors[n], TENSORS[n]) for n in TENSORS)


@pytest.mark.parametrize("suffix", [storage.DESCRIPTION, "safetensors"])
def test_a_change_of_any_byte_is_refused(tmp_path, suffix):
    put(tmp_path)
    (path,) = tmp_path.glob(f"*{suffix}")
    payload = path.read_bytes()
    for place in range(len(payload)):
        for changed in (payload[:place] + bytes([payload[place] ^ 1]) + payload[place + 1 :], payload[:place]):
            path.write_bytes(changed)
            with pytest.raises(pc.InputError):
                get(tmp_path)
    path.write_bytes(payload + b" ")
    with pytest.raises(pc.InputError):
        get(tmp_path)


def test_an_older_format_may_lack_its_digest_but_not_have_a_wrong_one(tmp_path):
    put(tmp_path)
    path = tmp_path / storage.DESCRIPTION
    sealed = path.read_bytes()
    description = {k: v for k, v in json.loads(sealed).items() if k != "digest"}
    path.write_text(json.dumps(description))
    assert storage.read(tmp_path, ["test 2", "test 1"])[1].keys() == TENSORS.keys()
    with pytest.raises(pc.InputError, match="its SHA-256 is not the one at its end"):
        get(tmp_path)
    path.write_bytes(sealed.replace(b"test 1", b"test 0"))
    with pytest.raises(pc.InputError, match="its SHA-256 is not the one at its end"):
        storage.read(tmp_path, ["test 1", "test 0"])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_neither_written_nor_read(tmp_path, value):
    model = make()
    model.save(tmp_path)
    with torch.no_grad():
        model.conditional("b").network.layers[0].bias[1] = value
    with pytest.raises(pc.InputError, match=r"'conditionals\.1\.network\.layers\.0\.bias' has NaN or infinite values"):
        model.save(tmp_path)
    pc.JointModel.load(tmp_path)
    with_weights(tmp_path, save(model.state_dict()))
    with pytest.raises(pc.InputError, match=r"'conditionals\.1\.network\.layers\.0\.bias' has NaN or infinite values"):
        pc.JointModel.load(tmp_path)
    with pytest.raises(pc.InputError, match="must not hold NaN or infinite numbers"):
        put(tmp_path / "other", number=value)


# --- JSON -------------------------------------------------------------------------------------------------------

HOSTILE = {
    "deep lists": '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "deeper than functions that call themselves can go": '{"a": ' + "[" * 900 + "]" * 900 + "}",
    "deep objects": '{"a":' * 900 + "1" + "}" * 900,
    "a name twice": '{"format": "test 1", "format": "test 1"}',
    "NaN": '{"a": NaN}',
    "Infinity": '{"a": [-Infinity]}',
    "an infinite number": '{"a": 1e999}',
    "a number of more than 64 bits": '{"a": 18446744073709551616}',
    "a number of a million digits": '{"a": ' + "1" * 1_000_000 + "}",
    "many objects": '{"a": [' + ",".join(["{}"] * 300_001) + "]}",
    "many entries": '{"a": [' + ",".join(["1"] * 500_002) + "]}",
    "many bytes": "{" + " " * storage.MOST_BYTES + "}",
    "a list": "[]",
    "nothing": "",
    "no text": "\udcff",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_json_that_is_no_description_is_refused(tmp_path, text):
    put(tmp_path)
    (tmp_path / storage.DESCRIPTION).write_bytes(text.encode("utf-8", "surrogateescape"))
    for work in (lambda: get(tmp_path), lambda: put(tmp_path)):
        with pytest.raises(pc.InputError) as error:
            work()
        assert "\n" not in str(error.value) and len(str(error.value)) < 600


def test_what_could_not_be_read_is_not_written(tmp_path, monkeypatch):
    put(tmp_path)
    deep = functools.reduce(lambda inside, _: [inside], range(250), 0)
    for wrong in ({"a": 2**64}, {"a": [[]] * 300_000}, {"a": {1: 0, "1": 0}}, {"a": deep}):
        with pytest.raises(pc.InputError, match="could not be read again"):
            put(tmp_path, **wrong)
    monkeypatch.setattr(storage, "MOST_FILES", 1)
    with pytest.raises(pc.InputError, match="it would have 2 weights files, at most 1 can be read; give a larger"):
        storage.write(tmp_path, {"format": "test 1"}, TENSORS, max_bytes=1)
    with monkeypatch.context() as patched:
        patched.setattr(storage, "MOST_BYTES", 100)
        with pytest.raises(pc.InputError, match="the names of its tensors have over 100 bytes"):
            put(tmp_path)
    assert get(tmp_path)[1].keys() == TENSORS.keys()


# --- weights ----------------------------------------------------------------------------------------------------


def entry(dtype="F32", shape=(1,), places=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(places)}


@pytest.mark.parametrize(
    "header",
    [
        {"a": entry(places=[0, 8])},
        {"a": entry(), "b": entry()},
        {"a": entry(), "b": entry(places=[8, 12])},
        {"a": entry(shape=[2**62, 2**62])},
        {"a": entry(shape=[-1])},
        {"a": entry(shape=[True])},
        {"a": entry(shape=[1] * 65)},
        {"a": entry(dtype="F4")},
        {"a": entry(places=[-4, 0])},
        {"a": 3},
        "[]",
        "[" * 50_000,
        '{"a": 1, "a": 1}',
    ],
)
def test_a_header_that_lies_is_refused(tmp_path, header):
    put(tmp_path)
    with_header(tmp_path, header, b"\0" * 4)
    with pytest.raises(pc.InputError, match=r"safetensors( is damaged|.*must hold an object)"):
        get(tmp_path)


def test_headers_of_all_files_together_are_bounded(tmp_path, monkeypatch):
    storage.write(tmp_path, {"format": "test 1"}, {f"{k:0200}": torch.zeros(1) for k in range(20)}, max_bytes=1)
    size = (tmp_path / storage.DESCRIPTION).stat().st_size
    assert size < 4000 < 20 * 200 + size
    get(tmp_path)
    monkeypatch.setattr(storage, "MOST_BYTES", 4000)
    with pytest.raises(
        pc.InputError, match=r"safetensors is damaged: its header has .* bytes, at most \d\d\d? can be read"
    ):
        get(tmp_path)


def test_weights_that_are_replaced_after_they_were_compared_are_refused(tmp_path):
    put(tmp_path)
    (path,) = tmp_path.glob("*.safetensors")
    payload = save({"a": torch.zeros(5)})
    compared = path.read_bytes()
    with_weights(tmp_path, payload)
    path.write_bytes(compared)
    with pytest.raises(pc.InputError, match="was replaced while it was read"):
        get(tmp_path, lambda description, entries: path.write_bytes(payload))


@pytest.mark.parametrize("which", [storage.DESCRIPTION, "weights"])
def test_pipes_devices_and_links_are_not_read(tmp_path, which):
    put(tmp_path)
    path = tmp_path / storage.DESCRIPTION if which != "weights" else next(tmp_path.glob("*.safetensors"))
    for made in (os.mkfifo, os.mkdir, lambda p: os.symlink("/dev/zero", p), lambda p: os.symlink(p, p)):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
        made(path)
        with pytest.raises(pc.InputError, match=r"cannot be read|is not a file that can be read"):
            get(tmp_path)


def test_a_user_s_names_of_weights_stay_in_the_folder(tmp_path):
    put(tmp_path)
    for name in ("../x", "/x", "a/b", "", ".", "..", "\0", "x" * 300, None, ["x", "x"], ["x"] * 5000):
        reseal(tmp_path, lambda d, name=name: d.update(weights=name))
        with pytest.raises(pc.InputError, match="it must name a weights file in its folder"):
            get(tmp_path)


# --- writing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_full_disk_leaves_the_former_folder_and_nothing_else(tmp_path, monkeypatch, function):
    put(tmp_path, number=1)
    original = getattr(os, function)
    for call in range(1, 5 if function == "fsync" else 3):
        used = []

        def fails(*arguments, used=used, call=call):
            used.append(arguments)
            if len(used) == call:
                raise OSError(errno.ENOSPC, "No space left on device")
            return original(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(storage.os, function, fails)
            with pytest.raises(OSError, match="cannot be written: No space left on device; what it held") as error:
                put(tmp_path, {"a": torch.full((3,), float(call))}, number=2)
        assert str(tmp_path) in str(error.value) and error.value.errno == errno.ENOSPC
        renamed = function == "fsync" and call == 4  # only the entry of the folder had not reached the disk
        assert get(tmp_path)[0]["number"] == (2 if renamed else 1)
        assert len(list(tmp_path.iterdir())) == 2


def test_an_error_is_not_hidden_by_that_of_cleaning_up(tmp_path, monkeypatch):
    put(tmp_path)

    def fails(*arguments):
        raise OSError(errno.EIO, "Input/output error")

    def denied(*arguments):
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(storage.Path, "iterdir", denied)
    monkeypatch.setattr(storage.os, "replace", fails)
    with pytest.raises(OSError, match="cannot be written: Input/output error"):
        put(tmp_path)


def test_files_of_a_user_stay(tmp_path):
    put(tmp_path)
    mine = ["weights-best.safetensors", "model.json.old-part", "weights-0123456789ab.safetensors.my.part", "x.part"]
    theirs = ["weights-0123456789ab.safetensors", "model.json.0123abcd.part", "weights-0123456789ab.safetensors.part"]
    for name in mine + theirs:
        (tmp_path / name).touch()
    put(tmp_path, number=2)
    assert {path.name for path in tmp_path.iterdir()} >= set(mine)
    assert not {path.name for path in tmp_path.iterdir()} & set(theirs)


def test_writers_take_turns_and_readers_see_one_of_them(tmp_path):
    """Of the same folder, which does not exist at first. Their tensors have different names and numbers."""
    folder, stop, seen, failed = tmp_path / "new" / "folder", threading.Event(), set(), []

    def writing(k):
        for _ in range(15):
            put(folder, {f"{k} {j}": torch.full((100,), float(k)) for j in range(k + 1)}, number=k)

    def reading():
        while not stop.is_set():
            try:
                description, tensors = get(folder)
            except pc.InputError as error:
                if seen or "does not exist" not in str(error):
                    failed.append(str(error))
                continue
            k = description["number"]
            seen.add(k)
            if tensors.keys() != {f"{k} {j}" for j in range(k + 1)} or any(
                bool((t != k).any()) for t in tensors.values()
            ):
                failed.append(f"a mixture with {k}")

    readers, writers = (
        [threading.Thread(target=reading)],
        [threading.Thread(target=writing, args=[k]) for k in range(3)],
    )
    for thread in readers + writers:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    readers[0].join()
    assert not failed and seen and len(list(folder.iterdir())) == 2


def test_a_reader_is_not_misled_by_a_folder_that_is_as_it_was_before(tmp_path, monkeypatch):
    """One, two and one again: weights that were gone for a while do not make the first one damaged."""
    put(tmp_path, number=1)
    original, seen = storage._header, []

    def header(path, most):
        seen.append(path)
        if len(seen) > 1:
            return original(path, most)
        put(tmp_path, {"c": torch.zeros(2)}, number=2)
        try:
            return original(path, most)
        finally:
            put(tmp_path, number=1)

    monkeypatch.setattr(storage, "_header", header)
    assert get(tmp_path)[0]["number"] == 1 and len(seen) == 2


def test_a_lock_of_a_folder_that_was_removed_is_not_taken_for_one(tmp_path, monkeypatch):
    folder, taken = tmp_path / "it", []
    original = storage.fcntl.flock

    def flock(descriptor, kind):
        original(descriptor, kind)
        taken.append(kind)
        if len(taken) == 1:
            folder.rmdir()

    monkeypatch.setattr(storage.fcntl, "flock", flock)
    put(folder)
    assert len(taken) == 3 and get(folder)[1].keys() == TENSORS.keys()


def test_a_process_that_was_forked_while_saving_does_not_keep_the_lock(tmp_path):
    with storage._alone(tmp_path):
        held = [os.dup(int(name)) for name in os.listdir("/proc/self/fd") if _is(name, tmp_path)]
    done = threading.Thread(target=put, args=[tmp_path], daemon=True)
    done.start()
    done.join(10)
    for descriptor in held:
        os.close(descriptor)
    assert held and not done.is_alive()


def _is(name, folder):
    try:
        return os.path.samefile(f"/proc/self/fd/{name}", folder)
    except OSError:
        return False


@pytest.mark.parametrize("place", ["file", "file/x", "link", "n" * 300, "file/x/y"])
def test_places_that_cannot_be_written_are_refused_before_training(tmp_path, place):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    started = learner()
    for work in (make().save, lambda folder: checkpoints.fit(started, 3, folder)):
        with pytest.raises(pc.InputError, match=r"cannot be written: .*; give another folder"):
            work(tmp_path / place)
    assert started.step_count == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def test_looking_at_a_place_makes_nothing(tmp_path):
    storage.require_place(tmp_path / "a" / "b", "test 1")
    assert not list(tmp_path.iterdir())
    for wrong in ("", "a\0b", None, 3, b"x"):
        with pytest.raises(pc.InputError, match="folder must be"):
            storage.require_place(wrong, "test 1")


# --- models from elsewhere --------------------------------------------------------------------------------------


def asks(change, message, tmp_path, **options):
    make(**options).save(tmp_path)
    reseal(tmp_path, change)
    with pytest.raises(pc.InputError, match=message) as error:
        pc.JointModel.load(tmp_path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 1000


@pytest.mark.parametrize(
    "network",
    [
        {"depth": 10**6},
        {"depth": 2**62},
        {"hidden": 16_384, "depth": 3},
        {"hidden": 2**40},
        {"hidden": 2**62, "depth": 2**62},
        {"output": [1] * 65},
        {"inputs": {"b": 2**40}},
        {"inputs": {"b": 10, "a": -7}},
        {"inputs": {"b": 3, "w": 3}},
        {"output": [4]},
    ],
)
def test_a_small_file_cannot_ask_for_a_large_network(tmp_path, network, monkeypatch):
    """Nothing is built: layers of torch may be made on the device without memory only."""
    original = torch.nn.Linear.reset_parameters

    def reset(self):
        assert self.weight.device.type == "meta"
        original(self)

    make().save(tmp_path / "good")
    monkeypatch.setattr(torch.nn.Linear, "reset_parameters", reset)
    (tmp_path / "good").rename(tmp_path / "bad")
    reseal(tmp_path / "bad", lambda d: d["networks"]["a"].update(network))
    with pytest.raises(pc.InputError):
        pc.JointModel.load(tmp_path / "bad")


def test_layers_are_counted_one_by_one():
    made = []

    class Counting(nn.Linear):
        def __init__(self, *arguments):
            made.append(arguments)
            super().__init__(*arguments)

    def endless():
        with outline.Outline(10):
            while True:
                Counting(2**20, 2**20)

    with pytest.raises(pc.InputError, match="more tensors than the weights files hold"):
        endless()
    assert len(made) <= (10 + outline.SPARE) // 2 + 1


def test_models_of_too_many_tensors_are_neither_written_nor_read(tmp_path, monkeypatch):
    make().save(tmp_path)
    monkeypatch.setattr(joint, "MOST_TENSORS", 7)
    monkeypatch.setattr(pc.JointModel, "_rebuilt", None)  # refused before that
    for work in (make().save, pc.JointModel.load):
        with pytest.raises(pc.InputError, match="it has 8 tensors, at most 7 can be read"):
            work(tmp_path)


def test_a_file_cannot_ask_for_much_by_sharing_little(tmp_path):
    """Every further layer is one that the file has, but each would be built first."""
    variables = {"a": pc.Binary(300), "b": pc.Binary(300)}
    networks = {n: pc.networks.mlp(variables, n, hidden=300, depth=2) for n in variables}
    pc.JointModel({n: pc.Conditional(variables[n], networks[n]) for n in variables}).save(tmp_path)
    first = "conditionals.0.network.layers.0"

    def share(description):
        description["networks"]["a"]["depth"] = 60
        more = [f"conditionals.0.network.layers.{k}" for k in range(6, 121, 2)]
        description["tied"] |= {f"{name}.{leaf}": f"{first}.{leaf}" for name in more for leaf in ("weight", "bias")}

    reseal(tmp_path, share)
    with pytest.raises(pc.InputError, match="much larger than the weights files, of which it shares parts"):
        pc.JointModel.load(tmp_path)


def test_sizes_are_not_multiplied_for_minutes(tmp_path):
    asks(lambda d: d["networks"]["a"].update(output=[2**62] * 20_000), "output has 20,000 sizes, expected", tmp_path)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda d: d["alpha"].update(a=0), "must be over 0"),
        (lambda d: d.update(alpha={"a": 1.7e308, "b": 1.7e308}), "must be over 0, and not vanish beside the others"),
        (lambda d: d.update(alpha={"a": 1e-300, "b": 1.0}), "must be over 0, and not vanish beside the others"),
        (lambda d: d["regeneration"].update(rate=1e-300), "at most 1,000,000 sweeps"),
        (lambda d: d["regeneration"].update(warmup=10**7), "at most 1,000,000 sweeps"),
        (lambda d: d["context"]["k"].update(default=[0, 1]), r"must have shape \[\], found \[2\]"),
        (lambda d: d["context"]["k"]["family"].update(classes=2**31 - 1), "over .* numbers"),
        (lambda d: d["context"]["k"]["family"].update(shape=[10**9]), "over .* numbers"),
        (
            lambda d: d["context"]["k"]["family"].update(shape=[2**62] * 100_000),
            "an event shape has positive whole numbers",
        ),
        (lambda d: d["variables"]["a"].update(shape=10**9), r"returns \[3\], not \[1000000000\]|over .* numbers"),
        (lambda d: d["context"].update({str(k): d["context"]["k"] for k in range(9000)}), "it has 9,003 groups"),
        (lambda d: d.update(tied={"conditionals.0.network.layers.2.bias": "x"}), "names of shared weights"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path, change, message):
    asks(change, message, tmp_path, context={"k": pc.Context(pc.Categorical(2), 1)})


# --- classes ----------------------------------------------------------------------------------------------------


def classes(**kinds):
    """Networks of a user, of these names, by their modules."""
    return [type(name, (pc.networks.MLP,), {"__module__": module}) for name, module in kinds.items()]


def test_a_name_of_ours_is_ours(tmp_path):
    model = make()
    model.save(tmp_path)
    theirs = classes(MLP="elsewhere")
    assert type(pc.JointModel.load(tmp_path).conditional("a").network) is pc.networks.MLP
    assert storage.class_named(pc.networks.Network, "MLP") is pc.networks.MLP
    assert storage.class_named(pc.networks.Network, "elsewhere.MLP") is theirs[0]
    assert storage.name_of(theirs[0]) == "elsewhere.MLP" and storage.name_of(pc.networks.MLP) == "paracond.MLP"


def test_names_that_could_mean_several_classes_are_refused():
    both = [*classes(Twofold="one.a"), *classes(Twofold="two.b")]
    for name in ("Twofold", "__main__.Twofold"):
        with pytest.raises(
            pc.InputError, match=r"could be any of one\.a\.Twofold, two\.b\.Twofold: rename all but one"
        ):
            storage.class_named(pc.networks.Network, name)
    assert [storage.class_named(pc.networks.Network, f"{m}.Twofold") for m in ("one.a", "two.b")] == both
    assert storage.class_named(pc.networks.Network, "two.moved.Twofold") is both[1]
    with pytest.raises(pc.InputError, match=r"unknown Network 'paracond\.Twofold'"):
        storage.class_named(pc.networks.Network, "paracond.Twofold")


@pytest.mark.parametrize(
    "name", ["os.system", "torch.nn.Linear", "paracond.JointModel", "paracond.Family", "", ".", None, 3]
)
def test_other_classes_are_never_made(name):
    for base in (pc.networks.Network, pc.families.Family):
        with pytest.raises(pc.InputError):
            storage.class_named(base, name)


# --- checkpoints from elsewhere ---------------------------------------------------------------------------------


def place(description, *keys):
    """The list of one pair in a packed state."""
    found = description["state"]["learner"]
    for key in keys:
        pair = next(pair for pair in found["pairs"] if pair[0] == key)
        found = pair[1]
    return pair


def setting(*keys, value):
    return lambda description, tensors: place(description, *keys).__setitem__(1, value)


def filling(name, value):
    def change(description, tensors):
        tensors[name] = torch.full_like(tensors[name], value)

    return change


def small_moments(description, tensors):
    """Fused optimisers would read beyond this tensor, which has the name of another."""
    tensors["/optimisers/small"] = torch.zeros(1)
    moments = place(description, "optimisers", "a", "state")[1]["pairs"][0][1]["pairs"]
    next(pair for pair in moments if pair[0] == "exp_avg")[1] = {"tensor": "/optimisers/small"}


def without_a_moment(description, tensors):
    place(description, "optimisers", "a", "state")[1]["pairs"][0][1]["pairs"].pop()


@pytest.mark.parametrize(
    "change",
    [
        setting("threads", value=10**6),
        setting("threads", value=0),
        setting("threads", value="2"),
        setting("step_count", value=-1),
        setting("source", "left", value=5),
        setting("batch", "due", value={"float": "nan"}),
        setting("scan", "last", value=2),
        setting("optimisers", "a", value={"pairs": []}),
        setting("random", "torch", value={"tensor": "/batch/tensors/own/ranks"}),
        filling("/batch/tensors/own/ranks", -1),
        filling("/batch/tensors/state/a", 7.0),
        filling("/source/order", 10**6),
        filling("/guard/first", 9),
        filling("/random/host", 255),
        small_moments,
        without_a_moment,
        setting("optimisers", "a", "state", value={"pairs": [[0, {"pairs": [["step", 1.0]]}]]}),
    ],
)
def test_a_crafted_checkpoint_changes_nothing(tmp_path, change):
    saved = learner()
    saved.fit(6)
    saved.save(tmp_path)
    description, tensors = storage.read(tmp_path, checkpoints.FORMAT)
    change(description, tensors)
    for path in tmp_path.iterdir():
        path.unlink()
    storage.write(tmp_path, description, tensors)
    refusing, threads = learner(seed=1), torch.get_num_threads()
    before = pictured(refusing)
    with pytest.raises(pc.InputError, match=r"cannot be restored|is of another run") as error:
        refusing.resume(tmp_path)
    assert "\n" not in str(error.value)
    assert pictured(refusing) == before and torch.get_num_threads() == threads


def pictured(refusing):
    """All that a learner has, random states included, bit for bit."""
    tensors = {}
    state = checkpoints._pack(refusing.state_dict(), "", tensors)
    return state, {name: tensor.detach().numpy().tobytes() for name, tensor in tensors.items()}


def test_moments_of_another_shape_never_reach_the_optimiser(tmp_path, monkeypatch):
    saved = learner()
    saved.fit(6)
    saved.save(tmp_path)
    description, tensors = storage.read(tmp_path, checkpoints.FORMAT)
    small_moments(description, tensors)
    storage.write(tmp_path, description, tensors)
    refusing = learner(seed=1)
    monkeypatch.setattr(refusing, "load_state_dict", None)
    with pytest.raises(pc.InputError, match="'exp_avg' of the optimiser of 'a' does not fit its parameter"):
        refusing.resume(tmp_path)


def test_a_checkpoint_that_fails_halfway_is_taken_back(tmp_path, monkeypatch):
    saved = learner()
    saved.fit(6)
    saved.save(tmp_path)
    refusing = learner(seed=1)
    before, original, calls = pictured(refusing), type(refusing.scan).load_state_dict, []

    def fails(self, state):
        calls.append(state)
        if len(calls) == 1:
            raise RuntimeError("no")
        original(self, state)

    monkeypatch.setattr(type(refusing.scan), "load_state_dict", fails)
    with pytest.raises(pc.InputError, match="cannot be restored: RuntimeError: no"):
        refusing.resume(tmp_path)
    assert pictured(refusing) == before
    refusing.resume(tmp_path)
    assert refusing.step_count == 6


def test_a_state_that_is_not_finite_is_reported_even_where_it_cannot_be_written(tmp_path, monkeypatch):
    started = learner()

    def ruin(info):
        with torch.no_grad():
            next(started.model.parameters()).fill_(float("nan"))
        monkeypatch.setattr(storage.os, "replace", full)

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(pc.NonFiniteError) as error:
        checkpoints.fit(started, 20, tmp_path, on_step=ruin)
    assert "the model at that moment is lost: " in error.value.__notes__[0]
