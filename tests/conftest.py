"""One thread per test process: the networks here are small, and two processes share two cores."""

import pytest
import torch

torch.set_num_threads(1)


def pytest_collection_modifyitems(items):
    """Tests marked `gpu` run where there is one (`make test-gpu`)."""
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
