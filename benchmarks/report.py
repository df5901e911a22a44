"""Write the tables of docs, and their charts, from benchmarks/results.

python benchmarks/report.py            # rewrites the documents between their table marks
python benchmarks/report.py --check    # exit status 1 if a table or a chart is not that of its JSON
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import chart
import gpu_tables
from peers import tables

from fastdata.terminal.words import three_digits

ROOT = Path(__file__).parents[1]


def loader_table(record: dict[str, Any]) -> str:
    """The Markdown table of a loader.json record, with its conditions below."""
    lines = [
        "| loader | float32: CPU ms/image | times less | uint8: CPU ms/image | times less |",
        "|---|---:|---:|---:|---:|",
    ]
    floats, bytes_ = record["results"]["float32"], record["results"]["uint8"]
    for float_row, byte_row in zip(floats["loaders"], bytes_["loaders"], strict=True):
        name = float_row["name"]
        if "synthetic" in name:  # it decodes nothing; a ratio to it says nothing
            continue
        cells = []
        for group, row in ((floats, float_row), (bytes_, byte_row)):
            ratio = group["times_better"][name]["cpu"]
            cells += [f"{row['cpu_ms_per_image']['median']:.2f}", f"{ratio['median']:.2f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    machine = record["machine"]
    return "\n".join(
        [
            *lines,
            "",
            f"{record['data']}; {record['setup']}; {machine['cpu']}, {machine['usable_cpus']} CPUs; torch "
            f"{machine['torch']}, Python {machine['python']}; medians of "
            f"{len(floats['loaders'][0]['cpu_ms_per_image']['values'])} interleaved rounds, and of the "
            f"ratios within each, {record['date']}.",
        ]
    )


def pairs_table(record: dict[str, Any]) -> str:
    """The Markdown table of a record that compares torch and fastdata, one line per dataset."""
    lines = [
        "| dataset | torch: CPU ms/image | fastdata: CPU ms/image | times less | lowest to highest of the rounds |",
        "|---|---:|---:|---:|---:|",
    ]
    others: list[str] = []
    for name, result in record["results"].items():
        (_, torchs), (_, ours), *rest = ((row["name"], row["cpu_ms_per_image"]["median"]) for row in result["loaders"])
        ratio = result["times_better"]["fastdata"]["cpu"]
        values = ratio["values"]
        spread = f"{min(values):.2f} to {max(values):.2f}"
        lines.append(f"| {name} | {three_digits(torchs)} | {three_digits(ours)} | {ratio['median']:.2f} | {spread} |")
        others += [f"{name} by {other}: {three_digits(ms)} CPU ms/image." for other, ms in rest]
    return "\n".join([*lines, "", " ".join([*others, _conditions(record)])])


def public_table(record: dict[str, Any]) -> str:
    """The Markdown table of public_pipelines.json, the largest gain first, with its conditions below."""
    lines = [
        "| program | torch: CPU ms | fastdata: CPU ms | times less | lowest to highest | memory in MB |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    medians, unequal = [], []
    rows = sorted(record["results"].items(), key=lambda each: -_ratio(each[1])["median"])
    for name, result in rows:
        (_, torchs), (_, ours) = ((row["name"], row["cpu_ms_per_image"]["median"]) for row in result["loaders"])
        ratio, peaks = _ratio(result), result["peak_mb"]
        medians.append(ratio["median"])
        spread = f"{min(ratio['values']):.2f} to {max(ratio['values']):.2f}"
        cells = [three_digits(torchs), three_digits(ours), f"{ratio['median']:.2f}", spread]
        lines.append(f"| {result['what']} | {' | '.join(cells)} | {peaks['torch']} to {peaks['fastdata']} |")
        if result["equal"] is not True:
            why = "torch's own batches are others the second time" if result["equal"] is None else result["difference"]
            unequal.append(f"{name} ({why})")
    programs = len({result["repository"] for result in record["results"].values()})
    told = (
        f"{len(rows)} pipelines of {programs} repositories; the first batches of {len(rows) - len(unequal)} equal "
        f"torch's, training draws included{'; others: ' if unequal else ''}{', '.join(unequal)}. "
        f"{sum(each >= 1.5 for each in medians)} gain 1.5 times or more, {sum(each < 0.97 for each in medians)} lose "
        "(less than 0.97)."
    )
    return "\n".join([*lines, "", f"{told} {_conditions(record)}"])


KINDS: dict[str, list[str]] = {  # of public pipelines, as the guide tells them
    "classification: crops, flips, RandAugment, erasing": [
        "imagenet_example",
        "convnext",
        "swin",
        "deit",
        "mae_finetune",
        "mae_pretrain",
        "supcontrast",
        "torchvision_classification",
    ],
    "images with masks, transformed together": [
        "deeplab_v3_plus",
        "pytorch_encoding",
        "torchvision_segmentation",
        "torchvision_segmentation_v2",
    ],
    "images with boxes": ["detr", "torchvision_detection_v2", "torchvision_detection_multiscale"],
    "pairs of images, images made from images": [
        "cyclegan",
        "contrastive_translation",
        "pix2pix",
        "srgan",
        "esrgan",
        "fast_neural_style",
        "dcgan",
        "denoising_diffusion",
    ],
    "images with text": ["image_captioning", "open_clip_csv", "open_clip_shards"],
    "several views with own blurs and solarising": [
        "dino",
        "dinov2",
        "swav",
        "moco_v2",
        "simsiam",
        "barlow_twins",
        "vicreg",
        "deit_three_augment",
    ],
    "own arithmetic in NumPy, or a convolution of one's own": ["deeplab_xception", "unet", "oxford_pet", "simclr"],
    "whole images in another colour space": ["super_resolution"],
    "small images, in memory or used one by one": [
        "federated",
        "contrastive_distillation",
        "parseq",
        "fast_reid",
        "edm",
    ],
}


def kinds_table(record: dict[str, Any]) -> str:
    """How much kinds of public programs gain, from public_pipelines.json."""
    lines = ["| code | times less CPU than torch's loader | programs measured |", "|---|---:|---:|"]
    for kind, names in KINDS.items():
        gains = sorted(_ratio(record["results"][name])["median"] for name in names)
        told = f"{gains[0]:.1f} to {gains[-1]:.1f}" if len(gains) > 1 else f"{gains[0]:.2f}"
        lines.append(f"| {kind} | {told} | {len(gains)} |")
    return "\n".join(lines)


def works_table(record: dict[str, Any]) -> str:
    """Ways to do the same works, and what each takes, from opencv.json or fields.json."""
    works = record["results"]["works"]
    names = [row["name"] for row in next(iter(works.values()))["loaders"]]
    lines = [f"| CPU ms per image, times less than torch | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    for work, result in works.items():
        ratios = {name: each["cpu"]["median"] for name, each in result["times_better"].items()}
        cells = [
            f"{three_digits(row['cpu_ms_per_image']['median'])}, {ratios[row['name']]:.2f}" for row in result["loaders"]
        ]
        lines.append(f"| {work} | {' | '.join(cells)} |")
    versions = ", ".join(f"{name} {version}" for name, version in record["results"]["versions"].items())
    return "\n".join([*lines, "", f"{versions}. {_conditions(record)}"])


def draws_table(record: dict[str, Any]) -> str:
    """What draws="torch" costs, and whether batches and losses are torch's, from draws.json."""
    own, torchs = "fastdata", 'fastdata, draws="torch"'
    lines = [
        "| CPU ms per image | torch | own draws | torch's draws | more than own draws | batches |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for recipe, result in record["results"]["recipes"].items():
        rows = {row["name"]: row["cpu_ms_per_image"] for row in result["loaders"]}
        more = [b / a - 1 for a, b in zip(rows[own]["values"], rows[torchs]["values"], strict=True)]
        cells = [three_digits(rows[name]["median"]) for name in ("torch", own, torchs)]
        cells += [f"{statistics.median(more):+.0%} ({min(more):+.0%} to {max(more):+.0%})"]
        lines.append(f"| {recipe} | {' | '.join(cells)} | {'equal' if result['equal'] else 'others'} |")
    lines.append("")
    for script, result in record["results"]["losses"].items():
        said = "all equal" if result["equal"] else f"equal up to the {result['first_difference']}th"
        lines.append(f"- {script}: {result['updates']} losses, {said} ({result['loader']}).")
    return "\n".join([*lines, "", _conditions(record)])


def _ratio(result: dict[str, Any]) -> dict[str, Any]:
    ratio: dict[str, Any] = result["times_better"]["fastdata"]["cpu"]
    return ratio


def train_table(record: dict[str, Any]) -> str:
    """The Markdown table of a train.json record."""
    lines = [
        "| loader | images/s | of synthetic | waiting for data | GPU utilisation |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, row in sorted(record["results"]["backends"].items(), key=lambda item: -item[1]["images_per_s"]["median"]):
        used = row["gpu_utilisation"]
        cells = [
            f"{row['images_per_s']['median']:.0f}",
            f"{row['ratio_to_synthetic']['median']:.2f}",
            f"{row['wait_share']['median']:.1%}",
            f"{used['median']:.0%}" if isinstance(used, dict) else used.split(":")[0],
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _conditions(record)])


def ablation_table(record: dict[str, Any]) -> str:
    """The Markdown table of an ablation.json record, as ratios to the base."""
    results = record["results"]
    base = results["base"]
    lines = [
        "| changed | images/s, times the base | peak memory, times | validation accuracy |",
        "|---|---:|---:|---:|",
    ]
    for name, row in results.items():
        if isinstance(row, str):
            lines.append(f"| {name} | {row.split(':')[0]} | | |")
            continue
        speed, memory = (row[key]["median"] / base[key]["median"] for key in ("images_per_s", "peak_mb"))
        accuracy = row["val_accuracy"]
        told = f"{accuracy['median']:.1%}"
        if accuracy["min"] < accuracy["max"]:
            told += f" ({accuracy['min']:.1%} to {accuracy['max']:.1%})"
        lines.append(f"| {name} | {speed:.2f} | {memory:.2f} | {told} |")
    base_told = (
        f"Base: {base['images_per_s']['median']:.0f} images/s, {base['peak_mb']['median']:.0f} MB, waiting for data "
        f"{base['wait_share']['median']:.1%} of the time. "
    )
    return "\n".join([*lines, "", base_told + _conditions(record)])


def faults_table(record: dict[str, Any]) -> str:
    """Rounds of the fault campaigns, by promise."""
    lines = ["| campaign | seed | rounds | failures | minutes | what came of them |", "|---|---:|---:|---:|---:|---|"]
    for name, found in record["campaigns"].items():
        outcomes = sorted(found["outcomes"].items(), key=lambda entry: -entry[1])
        told = ", ".join(f"{count:,} {what}" for what, count in outcomes[:4])
        more = f", and {len(outcomes) - 4} others" if len(outcomes) > 4 else ""
        if all(what.endswith(" transitions") for what in found["outcomes"]):
            told, more = f"{sum(count * int(what.split()[0]) for what, count in outcomes):,} transitions", ""
        failures = int("failure" in found)
        rounds, minutes = f"{found['rounds']:,}", f"{found['seconds'] / 60:.0f}"
        lines.append(f"| `{name}` | {found['seed']} | {rounds} | {failures} | {minutes} | {told}{more} |")
    return "\n".join([*lines, "", f"{record['setup']}; {record['date']}."])


def _conditions(record: dict[str, Any]) -> str:
    """Data, sizes, machine and date; how it is measured is in the benchmark's docstring."""
    machine = record["machine"]
    return (
        f"{record['data']}; {record['setup'].splitlines()[-1]}; {machine['cpu']}, {machine['usable_cpus']} CPUs; torch "
        f"{machine['torch']}, Python {machine['python']}; {record['date']}."
    )


def filled(text: str, mark: str, table: str) -> str:
    """The text with a table between <!-- mark --> and <!-- /mark -->."""
    before, rest = text.split(f"<!-- {mark} -->")
    _, after = rest.split(f"<!-- /{mark} -->")
    return f"{before}<!-- {mark} -->\n{table}\n<!-- /{mark} -->{after}"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare")
    given = parser.parse_args()
    stale = False
    for document, mark, result, table in TABLES:
        record = json.loads((ROOT / "benchmarks" / "results" / result).read_text())
        before = (ROOT / document).read_text()
        after = filled(before, mark, table(record))
        stale |= before != after
        if not given.check:
            (ROOT / document).write_text(after)
    for path, image in charts():
        stale |= not path.exists() or path.read_text() != image
        if not given.check:
            path.write_text(image)
    return int(given.check and stale)


CHART_TITLE = "CPU milliseconds per image: random crop, flip, normalise (less is better)"


def charts() -> Iterator[tuple[Path, str]]:
    """The charts of the open benchmark, for light and dark pages, with their paths."""
    record = json.loads((ROOT / "benchmarks" / "results" / "peers.json").read_text())
    rows = tables.shown_first(record)
    times = {name: tables.training_times(record, name) for name in rows}
    groups = {work["told"]: tables.medians(work) for work in record["results"]["workloads"].values()}
    for name, colours in (("light", chart.LIGHT), ("dark", chart.DARK)):
        yield ROOT / "docs" / f"cost-{name}.svg", chart.bars(rows, times, CHART_TITLE, colours)
        yield ROOT / "docs" / f"peers-{name}.svg", chart.panels(groups, "CPU ms per image", colours)


TABLES: list[tuple[str, str, str, Callable[[dict[str, Any]], str]]] = [
    ("docs/performance.md", "table", "loader.json", loader_table),
    ("docs/benchmark.md", "cost", "peers.json", tables.cost),
    ("docs/benchmark.md", "losses", "peers.json", tables.losses),
    ("docs/benchmark.md", "kinds", "peers_kinds.json", tables.kinds),
    ("docs/benchmark.md", "kinds variants", "peers_kinds.json", tables.variants),
    ("docs/benchmark.md", "kinds absent", "peers_kinds.json", tables.absent),
    ("docs/benchmark.md", "details", "peers.json", tables.details),
    ("docs/benchmark.md", "model", "peers.json", tables.model),
    ("docs/benchmark.md", "absent", "peers.json", tables.absent),
    ("docs/benchmark.md", "variants", "peers.json", tables.variants),
    ("docs/performance.md", "own", "own_datasets.json", pairs_table),
    ("docs/performance.md", "arrays", "arrays.json", pairs_table),
    ("docs/performance.md", "recipes", "recipes.json", pairs_table),
    ("docs/performance.md", "public", "public_pipelines.json", public_table),
    ("docs/guide.md", "kinds", "public_pipelines.json", kinds_table),
    ("docs/performance.md", "draws", "draws.json", draws_table),
    ("docs/performance.md", "opencv", "opencv.json", works_table),
    ("docs/performance.md", "fields", "fields.json", works_table),
    ("docs/performance.md", "gpu", "gpu_check.json", gpu_tables.gpu_table),
    ("docs/performance.md", "gpu again", "gpu_check_h200.json", gpu_tables.second_gpu_table),
    ("docs/performance.md", "gpu peers", "gpu_peers_h100.json", gpu_tables.third_gpu_table),
    ("docs/performance.md", "gpu own code", "gpu_own_code_h100.json", gpu_tables.own_code_table),
    ("docs/performance.md", "training", "train.json", train_table),
    ("docs/performance.md", "ablation", "ablation.json", ablation_table),
    ("docs/reliability.md", "faults", "faults.json", faults_table),
]


if __name__ == "__main__":
    raise SystemExit(main())
