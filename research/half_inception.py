"""Write the Inception network of the FID with its convolutions in float16: half the size, to carry to a device.

    python research/half_inception.py SOURCE.pt TARGET.pt

`Extractor.load` computes in float32 with the rounded weights, and its protocol says "stored in float16".
"""

import sys

import torch


def main(source: str, target: str) -> None:
    network = torch.jit.load(source, map_location="cpu")
    for parameter in network.parameters():
        if parameter.ndim > 1:  # means and variances are few, and stay exact
            parameter.data = parameter.data.half()
    torch.jit.save(network, target)


if __name__ == "__main__":
    main(*sys.argv[1:])
