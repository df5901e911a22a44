"""The loaders that are compared: what each needs, reads and can do."""

from __future__ import annotations

from dataclasses import dataclass, field

from workloads import Workload

__all__ = ["PEERS", "REFERENCE", "REFERENCE_OF_PIXELS", "VARIANTS", "Peer", "Variant"]

REFERENCE, REFERENCE_OF_PIXELS = "torch + torchvision", "torch, stored pixels"  # what all others are compared with


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A package.

    Attributes:
        name: of its environment.
        requires: what pip installs there, beside the torch and torchvision of the interpreter that makes it.
        system: Debian packages that it needs.
        imports: modules that must be there afterwards.
    """

    name: str
    requires: tuple[str, ...] = ()
    system: tuple[str, ...] = ()
    imports: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to use a peer.

    Attributes:
        name: in the results.
        peer: whose environment it runs in.
        program: module of `programs` that has its `prepare` and `loader`.
        option: handed to the program.
        reads: "files", "shards" or "pixels".
        cannot: views and kinds of images that it does not have, with the reason.
        needs_gpu: its batches are on a CUDA device.
        told: how it is set up, with what its documentation recommends.
    """

    name: str
    peer: str
    program: str
    option: str = ""
    reads: str = "files"
    cannot: dict[str, str] = field(default_factory=dict)
    needs_gpu: bool = False
    told: str

    def refusal(self, work: Workload, *, has_gpu: bool) -> str | None:
        """Why it does not take part, or None; an empty text where the workload is not meant for what it reads."""
        if self.name == REFERENCE and not work.is_pixels:
            return None
        if work.has_targets and self.name not in _WITH_TARGETS:
            return ""
        if work.is_pixels != ("pixels" in self.reads) and not (work.is_pixels and self.reads == "shards"):
            return ""
        if work.reads != "any" and work.reads != self.reads:
            return ""
        if self.needs_gpu and not has_gpu:
            return "needs a CUDA device, and there was none"
        return self.cannot.get(work.view) or self.cannot.get(work.images)


PEERS = {
    peer.name: peer
    for peer in [
        Peer(name="fastdata", imports=("fastdata",)),
        Peer(name="torch", imports=("torchvision",)),
        Peer(name="torchcodec", requires=("torchcodec",), system=("ffmpeg",), imports=("torchcodec.decoders",)),
        Peer(
            name="albumentations",
            requires=("albumentations", "opencv-python-headless"),
            imports=("albumentations", "cv2"),
        ),
        Peer(name="huggingface", requires=("datasets",), imports=("datasets",)),
        Peer(name="timm", requires=("timm",), imports=("timm",)),
        Peer(name="dali", requires=("nvidia-dali-cuda120",), imports=("nvidia.dali",)),
        Peer(
            name="ffcv",
            requires=("ffcv", "opencv-python", "numba"),
            system=("g++", "pkg-config", "libopencv-dev", "libturbojpeg0-dev"),
            imports=("ffcv", "numba", "cv2"),
        ),
        Peer(name="spdl", requires=("spdl",), system=("ffmpeg",), imports=("spdl.io",)),
        Peer(name="turboloader", requires=("turboloader",), imports=("turboloader",)),
        Peer(name="webdataset", requires=("webdataset",), imports=("webdataset",)),
        Peer(name="litdata", requires=("litdata",), imports=("litdata",)),
        Peer(name="mosaicml", requires=("mosaicml-streaming",), imports=("streaming",)),
        Peer(
            name="slipstream",  # on no package index
            requires=("visionlab-slipstream @ git+https://github.com/harvard-visionlab/slipstream",),
            system=("libturbojpeg0",),
            imports=("slipstream",),
        ),
    ]
}

_WITH_TARGETS = ("torch + torchvision", "torch + decode_image, v2", "fastdata", "OpenCV + albumentations")
_NO_PIXELS = {"pixels32": "reads image files only", "pixels256": "reads image files only"}
_AS_TORCH = "torch's DataLoader with persistent workers"

VARIANTS = {
    variant.name: variant
    for variant in [
        Variant(name=REFERENCE, peer="torch", program="torchvision", option="pil",
                told=f"{_AS_TORCH}; Pillow, torchvision's transforms"),
        Variant(name="torch + decode_image, v2", peer="torch", program="torchvision", option="tensor",
                told=f"{_AS_TORCH}; torchvision.io.decode_image, v2 transforms of uint8 tensors"),
        Variant(name="torch + torchcodec", peer="torchcodec", program="torchvision", option="torchcodec",
                told=f"{_AS_TORCH}; torchcodec.decoders.decode_image, v2 transforms of uint8 tensors"),
        Variant(name="OpenCV + albumentations", peer="albumentations", program="opencv",
                cannot={"randaugment": "has no RandAugment"},
                told=f"{_AS_TORCH}; cv2.imread, albumentations with area_for_downscale='image', as torchvision's "
                "resize is antialiased; cv2.setNumThreads(0) in workers; masks by Pillow"),
        Variant(name=REFERENCE_OF_PIXELS, peer="torch", program="torchvision", option="pixels", reads="pixels",
                told=f"{_AS_TORCH}; Image.fromarray of a mapped array, torchvision's transforms"),
        Variant(name="fastdata", peer="fastdata", program="ours", option="files",
                told="defaults, native backend"),
        Variant(name="fastdata, fast", peer="fastdata", program="ours", option="fast",
                told="fidelity='fast': large JPEGs are decoded at reduced size, as some of the others do"),
        Variant(name="fastdata, indexed", peer="fastdata", program="ours", option="indexed",
                cannot={"png": "an index is for JPEGs"},
                told="after fastdata index on the folder"),
        Variant(name="fastdata, shards", peer="fastdata", program="ours", option="shards", reads="shards",
                cannot={"pixels32": "fastdata reads the array itself"},
                told="fastdata convert; for stored pixels --raw 256"),
        Variant(name="fastdata, unpacked shards", peer="fastdata", program="ours", option="unpacked", reads="shards",
                cannot={"png": "unpacking is for JPEGs", **dict.fromkeys(_NO_PIXELS, "unpacking is for JPEGs")},
                told="fastdata convert --unpacked"),
        Variant(name="fastdata, stored pixels", peer="fastdata", program="ours", option="pixels", reads="pixels",
                told="the dataset class of the torch variant"),
        Variant(name="fastdata, WebDataset", peer="webdataset", program="webdataset", option="fastdata",
                reads="shards",
                told="the WebDataset pipeline below in fastdata's DataLoader instead of WebLoader"),
        Variant(name="fastdata, Hugging Face streaming", peer="huggingface", program="huggingface", option="fastdata",
                reads="shards", cannot=_NO_PIXELS,
                told="the Hugging Face dataset below in fastdata's DataLoader instead of torch's"),
        Variant(name="fastdata, GPU", peer="fastdata", program="ours", option="gpu", needs_gpu=True,
                told="device='cuda': the CPU decodes, batches are copied on a CUDA stream of their own"),
        Variant(name="fastdata, GPU augments", peer="fastdata", program="ours", option="gpu augments", needs_gpu=True,
                told="device='cuda', augment_on='device': the CPU decodes, the GPU augments whole batches"),
        Variant(name="fastdata, DALI on the GPU", peer="fastdata", program="ours", option="gpu decodes", needs_gpu=True,
                told="backend='dali', device='cuda', augment_on='device': DALI decodes and crops on the GPU"),
        Variant(name="timm", peer="timm", program="timm", option="",
                cannot={"simclr": "has no two views"},
                told="create_dataset, create_transform and create_loader without the prefetcher (it needs a GPU)"),
        Variant(name="DALI", peer="dali", program="dali", option="files",
                told="CPU pipeline, fused decode and crop, antialiased; outputs are read without a copy"),
        Variant(name="DALI, GPU", peer="dali", program="dali", option="gpu", needs_gpu=True,
                told="the same pipeline on the GPU, 'mixed' decoder; outputs are copied to tensors there"),
        Variant(name="DALI, tar", peer="dali", program="dali", option="shards", reads="shards",
                cannot={"pixels32": "see its reader of arrays", "pixels256": "see its reader of arrays"},
                told="the same, fn.readers.webdataset with an index"),
        Variant(name="DALI, arrays", peer="dali", program="dali", option="pixels", reads="pixels",
                told="the same, a batch of the array by fn.external_source"),
        Variant(name="FFCV", peer="ffcv", program="ffcv", option="jpg", reads="shards",
                cannot={"randaugment": "has no RandAugment", "simclr": "has no hue, grey and blur",
                        "pixels32": "see raw", "pixels256": "see raw",
                        "png": "would store JPEGs: see ImageNet"},
                told="JPEGs that it encodes anew at quality 90, os_cache, random order"),
        Variant(name="FFCV, raw", peer="ffcv", program="ffcv", option="raw", reads="pixels",
                told="uint8 pixels, os_cache, random order"),
        Variant(name="SPDL", peer="spdl", program="spdl", option="files",
                told="DataLoader with threads; FFmpeg decodes, crops and resizes in one filter (bilinear); RandAugment "
                "and SimCLR by torchvision's v2 in its threads"),
        Variant(name="TurboLoader", peer="turboloader", program="turboloader", reads="shards",
                cannot={"val": "has no Resize followed by CenterCrop", "randaugment": "other operations and levels",
                        "simclr": "has no two views", **_NO_PIXELS},
                told="DataLoader on a tar, train_aug, antialias, ImageNetNormalize"),
        Variant(name="WebDataset", peer="webdataset", program="webdataset", reads="shards",
                told="8 tars, shuffle(1000) after shuffled shards, decode('pil'), batched in workers, WebLoader"),
        Variant(name="Hugging Face streaming", peer="huggingface", program="huggingface", reads="shards",
                cannot=_NO_PIXELS,
                told="8 Parquet files with encoded images, load_dataset(streaming=True), shuffle(buffer_size=1000), "
                "map of torchvision's transforms, torch's DataLoader with persistent workers; without its pause of 5 s "
                "at the end of each pass"),
        Variant(name="LitData", peer="litdata", program="litdata", reads="shards",
                told="optimize() with JPEG bytes or arrays, StreamingDataset, v2 transforms, StreamingDataLoader"),
        Variant(name="MosaicML Streaming", peer="mosaicml", program="mosaicml", reads="shards",
                told="MDSWriter with JPEG bytes or arrays, StreamingDataset(batch_size), torch's DataLoader"),
    ]
}  # fmt: skip
