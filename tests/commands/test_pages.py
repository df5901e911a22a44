"""The pages that commands write, in a headless browser: nothing is wider than a phone, in light and dark."""

from __future__ import annotations

import html
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from browsers import browser
from places import ROOT

from fastdata.dataloader.verdict import Verdict
from fastdata.demo.report import write_report
from fastdata.demo.train import Epoch
from fastdata.diagnosis.html_report import as_html
from fastdata.diagnosis.observation import Facts, Loading, Observation, SampleTimes, Step, Stretch, SyncPlace
from fastdata.diagnosis.verdict import diagnose
from fastdata.measuring.rounds import Measurement

WIDTHS = (390, 800, 1440)
PICTURES = ROOT / "build" / "pages"


def measurement(name: str, cpu_ms: float) -> Measurement:
    values = [cpu_ms, 1.1 * cpu_ms, 0.9 * cpu_ms]
    return Measurement(name=name, images=100, cpu_ms_per_image=values, images_per_s=[2000 / ms for ms in values])


def demo_page(folder: Path) -> str:
    names = [
        "torch + torchvision",
        "fastdata, native",
        "fastdata, turbojpeg",
        "fastdata, opencv",
        "fastdata, synthetic",
    ]
    measured = [measurement(name, cpu_ms) for name, cpu_ms in zip(names, (4, 1, 1.5, 1.6, 0.1), strict=True)]
    epoch = Epoch(images=192, loss_first=2.3, loss_last=1.2, wait_s=0.1, forward_s=1, backward_s=2, step_s=0.3)
    path = folder / "report.html"
    write_report(path, measured, epoch, {"cpu": "a" * 200}, folder=Path("/a/" + "long/" * 30))
    return path.read_text()


def doctor_page(folder: Path) -> str:
    facts = Facts(syncs=[SyncPlace("a/" * 60 + "train.py:1", ".item()", 32, 0.001, 0.04)], dtypes=["float64"])
    steps = [Step(0.3, 0.03, 0.06, 0.01, 0.0)] * 3
    alone = Loading("", 10, 0.4, 80, 2.0, Verdict("not accelerated", "Own." * 60), {"decode": 0.3})
    sample = SampleTimes(samples=50, total_ms=10, idle_ms=0, decode_ms=8, width=4000, height=3000, shown_px=224 * 224)
    seen = Observation(
        program="train.py " + "--option=" + "x" * 200,
        cpus=8,
        dataset="Own",
        loader="batch_size=32, num_workers=4",
        is_ours=True,
        num_workers=4,
        facts=facts,
        real=Stretch.of(steps, cores=1.0),
        alone=alone,
        sample=sample,
        limitations=["y" * 300],
    )
    return as_html(diagnose(seen), {"cpu": "a" * 200})


PAGES = {"demo": demo_page, "doctor": doctor_page}


def browse(*options: str) -> str:
    command = [
        str(browser()),
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
    ]
    return subprocess.run([*command, *options], capture_output=True, text=True, timeout=180, check=True).stdout


@pytest.mark.browser
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wider_than_the_window(name: str, tmp_path: Path) -> None:
    page = PAGES[name](tmp_path)
    frames = "".join(f'<iframe width="{width}" height="900" srcdoc="{html.escape(page)}"></iframe>' for width in WIDTHS)
    script = (
        "<script>onload = () => { document.title = [...document.querySelectorAll('iframe')].map("
        "frame => frame.contentDocument.documentElement.scrollWidth).join(' ') }</script>"
    )
    (tmp_path / "frames.html").write_text(f"<!doctype html><style>iframe {{ border: 0 }}</style>{script}{frames}")
    PICTURES.mkdir(parents=True, exist_ok=True)
    (tmp_path / "page.html").write_text(page)
    for scheme, options in (("light", []), ("dark", ["--blink-settings=preferredColorScheme=0"])):
        shown = browse(*options, "--dump-dom", f"file://{tmp_path / 'frames.html'}")
        (title,) = re.findall(r"<title>([\d ]+)</title>", shown)
        assert [int(width) for width in title.split()] == list(WIDTHS)
        for width in WIDTHS:
            picture = PICTURES / f"{name}-{scheme}-{width}.png"
            size = f"--window-size={width},2400"
            browse(size, *options, f"--screenshot={picture}", f"file://{tmp_path / 'page.html'}")
            assert picture.stat().st_size > 10_000


_CELLS_AND_LABELS = """
<script>
const lines = each => {
  const range = document.createRange()
  range.selectNodeContents(each)
  let count = 0, bottom = -Infinity
  for (const box of range.getClientRects()) {
    if (box.top >= bottom - 2) count += 1
    bottom = Math.max(bottom, box.bottom)
  }
  return count
}
onload = () => {
  const [phone, desk] = [...document.querySelectorAll('iframe')].map(frame => frame.contentDocument)
  const all = (page, what) => [...page.querySelectorAll(what)]
  const cells = all(phone, 'td')
  const beyond = cell => cell.getBoundingClientRect().right > 390 || cell.scrollWidth > cell.clientWidth + 1
  const cut = [...cells, ...all(phone, 'pre')].filter(beyond)
  const head = cell => phone.defaultView.getComputedStyle(cell, '::before').content
  const unnamed = all(phone, '.numbers td:not(:first-child)').filter(cell => head(cell) === 'none')
  const labels = all(desk, '.bar span, .legend li, .numbers th, .numbers td, .pairs td:first-child')
  const wrapped = labels.filter(label => lines(label) > 1)
  const say = found => found.map(each => each.textContent.trim())
  document.body.innerText = JSON.stringify(
    {cells: cells.length, cut: say(cut), unnamed: say(unnamed), labels: labels.length, wrapped: say(wrapped)})
}
</script>
"""


@pytest.mark.browser
@pytest.mark.parametrize("name", PAGES)
def test_phones_show_every_column_and_desks_every_label_in_one_line(name: str, tmp_path: Path) -> None:
    page = html.escape(PAGES[name](tmp_path))
    frames = "".join(f'<iframe width="{width}" height="900" srcdoc="{page}"></iframe>' for width in (390, 1200))
    (tmp_path / "frames.html").write_text(f"<!doctype html><meta charset=utf-8>{_CELLS_AND_LABELS}<body>{frames}")
    shown = browse("--dump-dom", f"file://{tmp_path / 'frames.html'}")
    (found,) = re.findall(r"<body>(.*)</body>", shown, re.DOTALL)
    seen = json.loads(html.unescape(found))
    assert seen["cells"] > 10
    assert seen["labels"] > 10
    assert {kind: seen[kind] for kind in ("cut", "unnamed", "wrapped")} == {"cut": [], "unnamed": [], "wrapped": []}


def test_the_verdict_comes_first_and_the_winner_is_marked(tmp_path: Path) -> None:
    page = demo_page(tmp_path)
    said = " ".join(re.sub("<[^>]*>", " ", page.partition("<body>")[2]).split())
    assert said.startswith("fastdata on this machine")
    assert "fastdata, native loads these images with 4.0 times less CPU than torch + torchvision" in said
    assert "you save 1.1 CPU-hours" in said
    rows = re.findall(r"<tr[^>]*><td>([^<]*)</td><td[^>]*>[\d.]+ \(", page)
    assert rows == ["fastdata, native", "fastdata, turbojpeg", "fastdata, opencv", "torch + torchvision"]
    assert page.count('<tr class="best">') == 1


def test_a_page_says_whose_images_they_are(tmp_path: Path) -> None:
    measured = [measurement("torch + torchvision", 4.0), measurement("fastdata, native", 1.0)]
    for folder, told in ((None, "were drawn by this command"), (Path("/mine"), "Images of /mine.")):
        write_report(tmp_path / "page.html", measured, None, {}, folder=folder)
        assert told in (tmp_path / "page.html").read_text()


def test_what_was_not_measured_has_no_bar(tmp_path: Path) -> None:
    steps = [Step(0.3, 0.03, 0.06, 0.01, 0.0)] * 3
    alone = Loading("", 10, 0.4, 80, 2.0, Verdict("not accelerated", "Own."), {})
    told = {"program": "train.py", "cpus": 8, "dataset": "Own", "loader": "", "is_ours": True, "num_workers": 4}
    seen = Observation(**told, real=Stretch.of(steps, cores=1.0), alone=alone)
    page = as_html(diagnose(seen), {})
    assert "as it runs" in page
    assert "data only, by the loader alone" in page
    assert "<span>compute only</span>" in page
    without = as_html(diagnose(replace(seen, real=None)), {})
    assert "<span>compute only</span>" not in without
    assert "data only, by the loader alone" in without


def test_a_page_of_loaders_alone(tmp_path: Path) -> None:
    measured = [measurement("torch + torchvision", 4.0), measurement("fastdata, native", 1.0)]
    write_report(tmp_path / "bench.html", measured, None, {}, command="fastdata bench mine --rounds 1")
    page = (tmp_path / "bench.html").read_text()
    assert "fastdata bench mine --rounds 1" in page
    assert "Decoding" not in page
    assert "training" not in page


def test_a_diagnosis_shows_its_spread_and_its_command(tmp_path: Path) -> None:
    page = doctor_page(tmp_path)
    assert 'class="range"' in page
    assert "half of the steps took" in page
    assert "<pre>fastdata doctor train.py --option=" in page


def test_a_slower_loader_is_not_praised(tmp_path: Path) -> None:
    epoch = Epoch(images=1, loss_first=1, loss_last=1, wait_s=1, forward_s=1, backward_s=1, step_s=1)
    measured = [measurement("torch + torchvision", 1.0), measurement("fastdata, pil", 2.0)]
    write_report(tmp_path / "report.html", measured, epoch, {})
    page = (tmp_path / "report.html").read_text()
    assert "fastdata is not faster: fastdata, pil needs 2.00 times the CPU time of torch" in page
