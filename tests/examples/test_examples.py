"""The programs in examples/, as they are, and those of frameworks through `fastdata run`."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from images import jpeg
from PIL import Image
from places import ROOT
from warm_python import run_python

from fastdata import ShardDataset
from fastdata.shards.verify import verify_folder

EXAMPLES = ROOT / "examples"
RUN = ["-m", "fastdata", "run"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def example(name: str, *packages: str) -> Any:
    """An example, skipped where a package that it needs is not installed."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    marks = [pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")]
    if "ray" in packages:
        marks.append(pytest.mark.skipif(" " in sys.executable, reason="Ray starts none from a folder with a space"))
    return pytest.param(name, marks=marks, id=name)


def start(*arguments: str) -> tuple[str, str]:
    """What a program prints to stdout and stderr."""
    known = {name: value for name, value in os.environ.items() if name not in ("FASTDATA_RUN", "RANK", "LOCAL_RANK")}
    environment = {**known, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if list(arguments[: len(RUN)]) == RUN:  # which replaces the class when torch is imported
        command = [sys.executable, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    else:
        done = run_python(arguments, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def losses(printed: str) -> list[float]:
    found = [float(text) for text in re.findall(r"\bloss (\d+\.\d+)", printed)]
    assert found, printed
    return found


def check_output(printed: str) -> None:
    """The loss is small, so images and labels belong together; and the loader has said which path it takes."""
    assert losses(printed)[-1] < 0.3
    assert re.search(r"^(train: )?(path|accelerated|not accelerated): ", printed, re.MULTILINE), printed


def test_own_dataset() -> None:
    check_output(start(str(EXAMPLES / "own_dataset.py"))[0])


def test_own_backend() -> None:
    printed, _ = start(str(EXAMPLES / "own_backend.py"))
    assert "the contract of backends is kept" in printed
    assert "48 images by torchvision; largest difference from Pillow 0.0" in printed
    assert sum(bool(line.strip()) for line in (EXAMPLES / "own_backend.py").read_text().splitlines()) < 80


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        example("timm_training", "timm"),
        example("torchvision_presets", "torchvision"),
        example("lightning_training", "lightning"),
        example("accelerate_training", "accelerate"),
    ],
)
def test_programs_that_import_our_loader(name: str) -> None:
    check_output(start(str(EXAMPLES / f"{name}.py"))[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dataset", "run"),
    [
        pytest.param("lightning_training", "ImageFolder", RUN, marks=example("", "lightning").marks),
        pytest.param("accelerate_training", "ImageFolder", RUN, marks=example("", "accelerate").marks),
        pytest.param("transformers_trainer", "Dataset", RUN, marks=example("", "transformers", "accelerate").marks),
        pytest.param("transformers_trainer", "Dataset", [], marks=example("", "transformers", "accelerate").marks),
    ],
)
def test_programs_that_are_run_or_replace_the_class(name: str, dataset: str, run: list[str]) -> None:
    printed, told = start(*run, str(EXAMPLES / f"{name}.py"))
    assert losses(printed)[-1] < 1.2
    *before, path = [line for line in told.splitlines() if f"fastdata: DataLoader({dataset}, batch_size=8) at " in line]
    assert re.search(rf"\) at \S*{name}\.py:\d+: accelerated: ", path)
    assert all(re.search(r"py:\d+: (not known before the first batches|accelerated: )", line) for line in before)
    assert "fastdata: 96 images in 12 batches, " in told


@pytest.mark.slow
@pytest.mark.parametrize("run", [[], RUN], ids=["python", "fastdata run"])
@pytest.mark.parametrize("name", [example("accelerate_training", "accelerate")])
def test_accelerate_with_two_processes(name: str, run: list[str]) -> None:
    printed, told = start(*TORCHRUN, *run, str(EXAMPLES / f"{name}.py"))
    assert printed.count("samples 48") == 2
    assert losses(printed)[-1] < 0.3
    assert told.count("fastdata: DataLoader(ImageFolder, batch_size=8) at ") == (1 if run else 0)
    assert told.count("fastdata: 48 images in 6 batches, ") == (1 if run else 0)


SHARES = """
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=False))
torch.manual_seed(accelerator.process_index)
loader = accelerator.prepare(DataLoader(TensorDataset(torch.arange(64)), 4, shuffle=True))
torch.manual_seed(100 + accelerator.process_index)
for _ in range(2):
    mine = torch.cat([numbers for numbers, in loader])
    accelerator.print(accelerator.gather(mine).tolist())
accelerator.end_training()
"""


@pytest.mark.slow
@pytest.mark.parametrize("package", [example("accelerate", "accelerate")])
def test_ranks_with_different_seeds_share_every_sample(package: str, tmp_path: Path) -> None:
    """accelerate synchronises the sampler's generator when an epoch begins; a state taken before must not count."""
    (tmp_path / "shares.py").write_text(SHARES)
    plain, ours = (start(*TORCHRUN, *run, str(tmp_path / "shares.py"))[0] for run in ([], RUN))
    assert ours == plain
    assert all(sorted(json.loads(line)) == list(range(64)) for line in ours.splitlines())


RESUMED = """
import os, sys, lightning, torch
from fastdata import DataLoader
from torch.utils.data import TensorDataset

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []

    def training_step(self, batch, number):
        self.seen.append(batch[0].tolist())
        return self.layer(batch[0].float()[:, None]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

def train(steps, start=None):
    torch.manual_seed(3)
    model, loader = Model(), DataLoader(TensorDataset(torch.arange(48)), 8, shuffle=True)
    quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
    trainer = lightning.Trainer(max_steps=steps, accelerator="cpu", **quiet)
    trainer.fit(model, loader, ckpt_path=start, weights_only=False)
    trainer.save_checkpoint(sys.argv[1])
    return model.seen

whole, begun = train(5), train(3)
assert whole == begun + train(5, sys.argv[1])
print("the same")
"""


@pytest.mark.slow
@pytest.mark.parametrize("package", [example("lightning", "lightning")])
def test_lightning_continues_in_the_middle_of_an_epoch(package: str, tmp_path: Path) -> None:
    (tmp_path / "resumed.py").write_text(RESUMED)
    assert start(str(tmp_path / "resumed.py"), str(tmp_path / "saved.ckpt"))[0].splitlines()[-1] == "the same"


PREPARED = """
import sys, torch
from accelerate import Accelerator
from fastdata import DataLoader
from torchvision import datasets, transforms

steps = [transforms.Resize(40), transforms.CenterCrop(32), transforms.ToTensor()]
datasets = [datasets.ImageFolder(sys.argv[1], transforms.Compose(steps)) for _ in range(2)]
accelerator = Accelerator(cpu=True)
first = DataLoader(datasets[0], 4, shuffle=True, num_workers=1, on_error="skip")
second = DataLoader(datasets[0], 4, seed=5, memory_format=torch.channels_last)
for loader, choice in ((first, "skip"), (second, "raise")):
    ours = accelerator.prepare(loader)
    assert isinstance(ours, DataLoader.__mro__[1]), type(ours)
    assert (ours.on_error, ours.seed) == (choice, loader.seed)
    plan = ours._route().plan  # of the image pipeline
    assert (len(plan.fused), plan.unfused) == (3, ())
    assert ours.verdict().kind == "accelerated"
plain = torch.utils.data.DataLoader(datasets[0], 4)
for got, wanted in zip(ours, plain, strict=True):
    assert all(map(torch.equal, got, wanted)) and got[0].is_contiguous(memory_format=torch.channels_last)
rest = accelerator.skip_first_batches(ours, 3)
assert rest.seed == 5 and len(list(rest)) == len(plain) - 3
other = accelerator.prepare(torch.utils.data.DataLoader(datasets[1], 4))
assert not hasattr(other, "explain"), type(other)
other = accelerator.prepare(torch.utils.data.DataLoader(datasets[0], 4))  # the dataset of one of ours
assert not hasattr(other, "explain"), type(other)
print("as wanted")
"""


@pytest.mark.slow
@pytest.mark.parametrize("package", [example("accelerate", "accelerate")])
def test_loaders_that_accelerate_prepares(package: str, tmp_path: Path) -> None:
    """A loader made from one of ours is ours, with all its arguments; others stay torch's."""
    (tmp_path / "prepared.py").write_text(PREPARED)
    for number in range(20):
        (tmp_path / "images" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / "ab"[number % 2] / f"{number}.jpg").write_bytes(jpeg(64, 48, seed=number))
    assert start(str(tmp_path / "prepared.py"), str(tmp_path / "images"))[0] == "as wanted\n"


@pytest.mark.parametrize(
    ("name", "metric", "least"),
    [
        pytest.param("segmentation", "val_iou", 0.5, id="segmentation"),
        pytest.param("detection", "val_iou", 0.3, id="detection", marks=pytest.mark.slow),
        pytest.param("image_text", "val_right", 0.5, id="image_text", marks=pytest.mark.slow),
        pytest.param("two_views", "val_found", 0.06, id="two_views", marks=pytest.mark.slow),
        pytest.param(
            "finetune_timm",
            "val_accuracy",
            0.6,
            id="finetune_timm",
            marks=[pytest.mark.slow, *example("", "timm").marks],
        ),
    ],
)
def test_own_losses_and_metrics(name: str, metric: str, least: float) -> None:
    printed, _ = start(str(EXAMPLES / f"{name}.py"))
    values = [float(text) for text in re.findall(rf"{metric} (\d+\.?\d*)", printed)]
    assert max(values) > least, printed
    assert "accelerated: " in printed


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("name", [example("ray_conversion", "ray")])
def test_a_cluster_converts(name: str) -> None:
    printed, told = start(str(EXAMPLES / f"{name}.py"))
    assert "converted: 48 of 48 images" in told
    assert "no faults" in printed
    assert "a batch of (8, 3, 64, 64)" in printed


CONVERSIONS = {
    "convert_coco": {"COCO_IMAGES": "pictures", "COCO_ANNOTATIONS": "coco.json"},
    "convert_voc": {"VOC": "voc"},
    "convert_table": {"TABLE": "table.csv"},
    "convert_hugging_face": {"HF_DATASET": "saved"},
}


@pytest.fixture
def annotated(tmp_path: Path) -> Path:
    """Three images with what the conversions need beside them."""
    for folder in ("pictures", "voc/JPEGImages", "voc/Annotations", "voc/SegmentationClass"):
        (tmp_path / folder).mkdir(parents=True)
    rows = []
    for n in range(3):
        for folder in ("pictures", "voc/JPEGImages"):
            (tmp_path / folder / f"{n}.jpg").write_bytes(jpeg(40 + n, 30, seed=n))
        box = "".join(f"<{side}>{n}</{side}>" for side in ("xmin", "ymin", "xmax", "ymax"))
        text = f"<annotation><object><name>cat</name><bndbox>{box}</bndbox></object></annotation>"
        (tmp_path / "voc" / "Annotations" / f"{n}.xml").write_text(text)
        Image.new("L", (40 + n, 30), n).save(tmp_path / "voc" / "SegmentationClass" / f"{n}.png")
        rows.append(f"pictures/{n}.jpg,{'cat' if n else 'dog'},picture {n}\n")
    (tmp_path / "table.csv").write_text("".join(["path,label,caption\n", *rows]))
    found = [{"id": n, "image_id": n, "category_id": 7, "bbox": [n] * 4} for n in range(3)]
    pictures = [{"id": n, "file_name": f"{n}.jpg", "width": 40 + n, "height": 30} for n in range(3)]
    content = {"images": pictures, "annotations": found, "categories": [{"id": 7, "name": "cat"}]}
    (tmp_path / "coco.json").write_text(json.dumps(content))
    return tmp_path


def save_hugging_face(folder: Path) -> None:
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=["cat", "dog"])
    features = datasets.Features({"image": datasets.Image(), "label": names})
    images = [str(folder / "pictures" / f"{n}.jpg") for n in range(3)]
    datasets.Dataset.from_dict({"image": images, "label": [1, 0, 0]}, features=features).save_to_disk(folder / "saved")


@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversions_of_other_layouts(name: str, annotated: Path) -> None:
    if name == "convert_hugging_face":
        save_hugging_face(annotated)
    places = {key: str(annotated / place) for key, place in CONVERSIONS[name].items()}
    command = [sys.executable, "-m", "fastdata", "convert", "--from", f"{name}:samples", str(annotated / "out")]
    environment = {**os.environ, **places, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=EXAMPLES, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(verify_folder(annotated / "out", decode=True)) == []
    dataset = ShardDataset(annotated / "out")
    originals = [(annotated / "pictures" / f"{n}.jpg").read_bytes() for n in range(3)]
    assert [dataset.read_encoded(n) for n in range(3)] == originals
    if name in ("convert_table", "convert_hugging_face"):
        assert (dataset.classes, dataset.targets) == (["cat", "dog"], [1, 0, 0])
    if name == "convert_table":
        assert [*ShardDataset(annotated / "out", fields=("txt",))] == [(f"picture {n}",) for n in range(3)]
    if name == "convert_coco":
        found = [entry["annotations"] for (entry,) in ShardDataset(annotated / "out", fields=("json",))]
        assert [(one["category"], one["bbox"]) for (one,) in found] == [("cat", [n] * 4) for n in range(3)]
    if name == "convert_voc":
        fields = ShardDataset(annotated / "out", fields=("json", "mask.png"))
        assert [(found, mask.getpixel((0, 0))) for found, mask in fields] == [
            ([{"name": "cat", "bbox": [n] * 4}], n) for n in range(3)
        ]
