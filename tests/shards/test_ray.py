"""Conversion on a Ray cluster of several nodes: the same bytes, and a lost worker's shards are made again."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deadly
import pytest
from folders import tree
from places import HELPERS

from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.conversion.recode import Recoding
from fastdata.shards.engines import run_jobs

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(300),
    pytest.mark.skipif(" " in sys.executable, reason="Ray starts no worker from a folder with a space in its name"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes on this machine."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'torch-fastdata[ray]'")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    for _ in range(2):
        made.add_node(num_cpus=1)
    path = os.pathsep.join([str(HELPERS), *filter(None, [os.environ.get("PYTHONPATH")])])
    ray.init(address=made.address, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": path}})
    yield ray
    nodes = [made.head_node, *made.worker_nodes]
    ray.shutdown()
    made.shutdown()
    # Exit handlers hold the nodes.  A process that a later test forks would clear them, and wait for ever for threads
    # of their clients, which it has not got.
    for node in nodes:
        node._gcs_client = None


@pytest.mark.slow
def test_the_bytes_are_those_of_one_process(cluster: Any, folder: Path, tmp_path: Path) -> None:
    options = ConvertOptions(shard_bytes=30_000, shuffle_seed=2, recoding=Recoding(max_side=90, unpacked=True))
    convert(str(folder), tmp_path / "here", options)
    convert(str(folder), tmp_path / "there", options, workers=3, engine="ray")
    assert tree(tmp_path / "here") == tree(tmp_path / "there")
    assert len({node["NodeID"] for node in cluster.nodes() if node["Alive"]}) == 3


@pytest.mark.slow
def test_what_a_lost_worker_had_is_done_again(cluster: Any, tmp_path: Path) -> None:
    jobs = [(number, str(tmp_path / "died")) for number in range(8)]
    assert sorted(run_jobs(deadly.die_once, jobs, workers=3, engine="ray")) == list(range(8))
    assert (tmp_path / "died").exists()
