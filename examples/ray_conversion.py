"""A conversion by the nodes of a Ray cluster: here a head and two workers, all on this machine.

    python examples/ray_conversion.py [--data FOLDER]

Starts the cluster, converts a folder of images to shards by its nodes, verifies the shards, and reads a batch.

For a cluster of yours, leave out `local_cluster` and run the command of `convert` on one of its nodes, or elsewhere
with RAY_ADDRESS=ray://HEAD:10001.  Every node needs the package (pip install 'torch-fastdata[ray]'), and must find
source and destination under the same path, as on NFS, Lustre or a mounted bucket; the destination is a folder, not a
URL.  Take as many --workers as the cluster has CPUs.  The shards are the same bytes for any number of nodes; what a
lost node was making is made again by another one, and the same command continues after a lost head.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common import SCRATCH, data_folder
from ray.cluster_utils import Cluster
from torchvision import transforms

from fastdata import DataLoader, ShardDataset

NODES = 3


@contextmanager
def local_cluster() -> Iterator[str]:
    """A cluster of processes of this machine, of which Ray believes that they are nodes; its address."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        for _ in range(NODES - 1):
            cluster.add_node(num_cpus=1)
        yield cluster.address
    finally:
        cluster.shutdown()


def convert(source: Path, destination: Path, address: str) -> None:
    """Runs `fastdata convert` on the cluster, and `fastdata verify` here."""
    command = [sys.executable, "-m", "fastdata"]
    settings = ["--engine", "ray", "--workers", str(NODES), "--shard-size", "100K"]
    environment = {**os.environ, "RAY_ADDRESS": address}
    subprocess.run([*command, "convert", source, destination, *settings], env=environment, check=True)
    subprocess.run([*command, "verify", destination], check=True)


def main() -> None:
    """Converts, and reads a batch."""
    shards = Path(SCRATCH.name) / "shards"
    with local_cluster() as address:
        convert(data_folder(), shards, address)
    dataset = ShardDataset(shards, transforms.Compose([transforms.RandomResizedCrop(64), transforms.ToTensor()]))
    images, labels = next(iter(DataLoader(dataset, batch_size=8, shuffle=True)))
    print(f"a batch of {tuple(images.shape)}, classes {sorted(set(labels.tolist()))}; {len(dataset)} images in all")


if __name__ == "__main__":
    main()
