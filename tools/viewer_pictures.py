"""Draw the pictures of docs/viewer.md from the runs of a demo, in a headless Chromium.

    exgrpo demo --output_dir exgrpo-demo
    python tools/viewer_pictures.py exgrpo-demo/runs/exgrpo exgrpo-demo/runs/on-policy

Needs Chromium with its driver, and selenium (`pip install 'exgrpo[dev]'`).
"""

import argparse
import json
import shutil
import time
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from exgrpo.view.run import Run
from exgrpo.view.server import ViewServer

FOLDER = Path(__file__).parents[1] / "docs" / "images" / "viewer"
WIDE, PHONE = (1280, 860), (390, 760)
PATIENCE = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs=2, metavar="RUN", help="one that replays, and one to lay over it")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for the pictures (default: %(default)s)")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    one, two = (ViewServer([Run(path) for path in paths], port=0) for paths in (args.runs[:1], args.runs))
    for server in (one, two):
        server.in_background()
    browser = start()
    question = most_eventful(one.runs[0])
    shots = (
        ("run.png", one, "#/0/run", WIDE, False),
        ("questions.png", one, "#/0/questions?only=relearned&sort=regained&down=1", WIDE, False),
        ("question.png", one, f"#/0/q/{question}", WIDE, False),
        ("steps.png", one, f"#/0/step/{latest_replay(one.runs[0])}", WIDE, False),
        ("two-runs.png", two, "#/all/run", WIDE, True),
        ("phone.png", one, f"#/0/q/{question}", PHONE, True),
    )
    for name, server, place, size, dark in shots:
        shoot(browser, server.address + place, place, size, dark, args.folder / name)
        print(f"wrote {args.folder / name}")
    browser.quit()


def start() -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(flag)
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def most_eventful(run: Run) -> int:
    """The question whose success came back most often."""
    page = run.answer("questions", {"only": "relearned", "sort": "regained", "down": "1", "count": "1"})
    rows = page["rows"] or run.answer("questions", {"sort": "replays", "down": "1", "count": "1"})["rows"]
    return rows[0]["id"]


def latest_replay(run: Run) -> int:
    rows = run.answer("steps", {})["rows"]
    return next(row["generation"] for row in reversed(rows) if row["replayed"])


def shoot(browser: webdriver.Chrome, address: str, place: str, size: tuple[int, int], dark: bool, path: Path) -> None:
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1.5 if width < 600 else 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    browser.get("about:blank")
    browser.get(address)
    end = time.monotonic() + PATIENCE
    while browser.execute_script("return document.body.dataset.ready") != place:
        if time.monotonic() > end:
            raise SystemExit(f"{json.dumps(place)} was not drawn within {PATIENCE} seconds")
        time.sleep(0.1)
    while "/step/" in place and "×" not in browser.execute_script("return document.body.innerText"):
        time.sleep(0.1)  # weights of members come a little later
    time.sleep(1)
    browser.save_screenshot(str(path))


if __name__ == "__main__":
    main()
