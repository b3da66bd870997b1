"""The rebuilt code learns and answers as the code before it, bit for bit (tests/before.json holds the old numbers).

This file and its numbers stay only while the code is being moved. Bits are those of one kind of CPU and of one thread;
on another CPU the numbers must agree to three digits.
"""

import hashlib
import json
import os
import platform
import warnings
from pathlib import Path
from unittest import mock

import pytest
import torch
from before_cases import CASES

import paracond as pc

FILE = Path(__file__).with_name("before.json")


def cpu():
    text = Path("/proc/cpuinfo").read_text() if os.path.exists("/proc/cpuinfo") else platform.processor()
    return next((line.split(":")[1].strip() for line in text.splitlines() if line.startswith("model name")), text)


def digest(values):
    """Some numbers and a digest of all their bytes, of tensors by name."""
    found = {}
    for name, value in values.items():
        value = value.detach().cpu().contiguous()
        flat = value.flatten().double()
        found[name] = {
            "sha256": hashlib.sha256(value.numpy().tobytes()).hexdigest()[:16],
            "mean": float(flat.mean()),
            "first": flat[:3].tolist(),
            "last": flat[-3:].tolist(),
        }
    return found


def run(case):
    """With one thread throughout: learners on a CPU try out several."""
    torch.set_num_threads(1)
    with mock.patch("torch.set_num_threads"), warnings.catch_warnings():
        warnings.simplefilter("ignore", pc.NotMixedWarning)
        return digest(CASES[case]())


@pytest.mark.parametrize("case", CASES)
def test_same_numbers_as_before(case):
    kept = json.loads(FILE.read_text())
    found = run(case)
    if cpu() == kept["cpu"]:
        assert found == kept["numbers"][case]
        return
    for name, numbers in kept["numbers"][case].items():
        assert found[name]["mean"] == pytest.approx(numbers["mean"], rel=1e-3, abs=1e-4)


if __name__ == "__main__":
    kept = {"cpu": cpu(), "numbers": {case: run(case) for case in CASES}}
    FILE.write_text(json.dumps(kept, indent=1))
