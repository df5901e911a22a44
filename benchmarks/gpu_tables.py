"""Tables of what ran on GPUs, for report.py."""

from __future__ import annotations

from typing import Any


def gpu_table(record: dict[str, Any]) -> str:
    """The Markdown table of what tools/gpu_check.py found, from gpu_check.json."""
    rows, alone = record["rows"], record["decoding alone"]["images_per_s"]
    model, decoding, differences = rows["resnet50"]["images_per_s"], rows["decoding"], rows["precision"]["differences"]
    host, device = rows["augmentations"]["host"], rows["augmentations"]["device"]
    by_hand = alone["mixed, window, fancy upsampling"], alone["CPU, window"]
    worst = ", ".join(f"{name} {100 * value:.1f} %" for name, value in differences.items())
    told = {
        "ResNet-50, bf16, batch 256": f"{model['native']:,.0f} images/s, {rows['resnet50']['share']:.1%} of "
        f"{model['synthetic']:,.0f} without any loading; torch's loader {model['torch']:,.0f}",
        "batches of 128 on the device, without a model": f"native {decoding['native']['images_per_s']:,.0f} images/s, "
        f"torch's loader {decoding['torch']['images_per_s']:,.0f}, DALI on the GPU "
        f"{decoding['dali, GPU']['images_per_s']:,.0f}, on the CPU {decoding['dali, CPU']['images_per_s']:,.0f}",
        "a pipeline of DALI's alone, 128 photographs again and again": f"{by_hand[0]:,.0f} images/s on the GPU, "
        f"{by_hand[1]:,.0f} on the CPU",
        "RandAugment, batches of 64": f"on the host {host['images_per_s']:,.0f} images/s, on the device "
        f"{device['images_per_s']:,.0f}: {device['consumer_ms']:.0f} ms of each batch in Python, "
        f"{device['gpu_ms']:.1f} ms on the GPU",
        "copies hidden by computing": f"{rows['copies']['hidden']:.1%}",
        "most batches in the GPU's memory, of 60": f"{rows['memory']['most_in_memory']:.0f}; without the wait "
        f"{rows['memory']['most_without_waiting']:.0f}",
        "losses against float32's, largest difference": worst,
        "two processes on one GPU": f"accumulation, recomputation, SyncBatchNorm with it; a killed one noticed in "
        f"{rows['ranks']['killed rank noticed in']}",
        "the doctor": f"a starved loop: {rows['doctor']['starved']}, {rows['doctor']['starved waits']:.0%} waiting; a "
        f"busy one: {rows['doctor']['busy']}, {rows['doctor']['busy waits']:.0%}",
        "tests of the GPU": f"{record['tests']['passed']} passed, {record['tests']['failed']} failed: "
        f"{record['tests']['why']}",
    }
    machine = record["machine"]
    lines = ["| | found |", "|---|---|", *(f"| {name} | {text} |" for name, text in told.items())]
    conditions = f"{machine['gpu']}, {machine['cores']} cores; torch {machine['torch']}, Python {machine['python']}, "
    return "\n".join([*lines, "", f"{conditions}DALI {machine['DALI']}; {record['date']}. Each row once."])


def second_gpu_table(record: dict[str, Any]) -> str:
    """The Markdown table of the rows that ran again on other GPUs, from gpu_check_h200.json."""
    machine, first, tests = record["machine"], record["first"]["rows"]["resnet50"], record["tests"]
    model = first["images_per_s"]
    lines = [
        f"ResNet-50, bf16, batch 256: {model['native']:,.0f} images/s, {first['share']:.1%} of "
        f"{model['synthetic']:,.0f} without any loading; torch's loader {model['torch']:,.0f}, DALI "
        f"{model['dali']:,.0f}. Tests of the GPU: {tests['passed']} passed, {tests['failed']} failed, "
        f"{tests['skipped']} skipped ({tests['why']}).",
        "",
        "| | images/s | consumer's CPU ms per batch | GPU ms per batch |",
        "|---|---:|---:|---:|",
    ]
    for name in ("first", "second"):
        for row, batch in (("decoding", 128), ("augmentations", 64)):
            for way, found in record[name]["rows"][row].items():
                cells = [f"{found['images_per_s']:,.0f}"]
                cells += [f"{found[key]:.1f}" if key in found else "–" for key in ("consumer_ms", "gpu_ms")]
                lines.append(f"| {name} machine, {row}, batches of {batch}: {way} | {' | '.join(cells)} |")
    lines += ["", *_GPU_PEERS_HEAD]
    for name in ("first", "second"):
        lines += _gpu_peers(f"{name} machine, ", record[name]["peers"])
    conditions = f"{machine['gpu']}, {machine['cores']} cores; torch {machine['torch']}, Python {machine['python']}, "
    return "\n".join([*lines, "", f"{conditions}DALI {machine['DALI']}; {record['date']}."])


_GPU_PEERS_HEAD = (
    "| the open benchmark's variants | images/s, each round | consumer's CPU ms per image | GPU ms per image |",
    "|---|---:|---:|---:|",
)


def _gpu_peers(machine: str, workloads: dict[str, Any]) -> list[str]:
    """Rows of the open benchmark's variants on a GPU."""
    lines = []
    for work, variants in workloads.items():
        for variant, found in variants.items():
            cells = [", ".join(f"{rate:,}" for rate in found["images_per_s"])]
            for key in ("consumer_cpu_ms_per_image", "gpu_ms_per_image"):
                cells.append(", ".join(map(str, found[key])) or "–")
            lines.append(f"| {machine}{work}: {variant} | {' | '.join(cells)} |")
    return lines


def third_gpu_table(record: dict[str, Any]) -> str:
    """The Markdown table of the open benchmark's variants with a kept pipeline, from gpu_peers_h100.json."""
    machine, tests, parts = record["machine"], record["tests"], record["augment_on_device_ms"]
    counts = f"{tests['passed']} passed, {tests['failed']} failed, {tests['skipped']} skipped ({tests['why']})"
    told = ", ".join(f"{key} {value} ms" for key, value in parts.items() if isinstance(value, float) and value > 0.1)
    conditions = f"{machine['gpu']}, {machine['cores']} cores; torch {machine['torch']}, Python {machine['python']}, "
    return "\n".join(
        [
            *_GPU_PEERS_HEAD,
            *_gpu_peers("", record["peers"]),
            "",
            f"{parts['transform']} on batches of {parts['batch']} on the device, in the consumer's thread: {told}. "
            f"Tests of the GPU and of augmentations: {counts}.",
            "",
            f"{conditions}DALI {machine['DALI']}; {record['date']}.",
        ]
    )


def own_code_table(record: dict[str, Any]) -> str:
    """The Markdown table of datasets of one's own on a GPU, from gpu_own_code_h100.json."""
    machine, results = record["machine"], record["results"]
    lines = ["| images/s, each round | torch's loader | fastdata | no loading |", "|---|---:|---:|---:|"]
    for form, found in results["images_per_s"].items():
        cells = [", ".join(f"{rate:,}" for rate in found[kind]) for kind in ("torch", "fastdata")]
        lines.append(f"| {form} | {' | '.join(cells)} | {found['no loading']:,} |")
    conditions = f"{machine['gpu']}, {machine['cores']} cores; torch {machine['torch']}, Python {machine['python']}"
    return "\n".join([*lines, "", f"{record['setup']}. {conditions}; {record['date']}."])
