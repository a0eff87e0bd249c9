"""The page in a real browser: every view, keys, search, paging, two runs, a run that grows, hostile texts, a file from disk.

`make test-browser` runs this; it needs Chromium and its driver (Debian: apt-get install chromium chromium-driver).
"""

import json
import math
import os
import shutil
import socket
import time

import pytest

from exgrpo.archive.parquet import export
from exgrpo.log import LogReader
from exgrpo.view.evaluation import evaluation_in, open_evaluations
from exgrpo.view.page import write_page
from exgrpo.view.run import Run as ViewedRun
from exgrpo.view.server import ViewServer
from tests.support.big_log import MadeUpRun
from tests.support.hostile import make as hostile_run
from tests.support.hostile import make_evaluation

pytestmark = [pytest.mark.browser, pytest.mark.slow]
MISSING = (
    "no Chromium with its driver was found. Install them (Debian: apt-get install chromium chromium-driver), and selenium "
    "(pip install 'exgrpo[dev]')."
)
WIDE, NARROW = (1280, 900), (390, 844)
VIEWS = ("run", "questions", "steps")
PATIENCE = 60


def start():
    """A headless browser with its logs of console and network; no test waits for one that is not there."""
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        webdriver = None
    driver = shutil.which("chromedriver")
    if webdriver is None or driver is None:
        if os.environ.get("EXGRPO_NEEDS_BROWSER"):
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(driver))


class Page:
    """A browser at a page of ours."""

    def __init__(self, driver):
        self.driver = driver
        self.size(*WIDE)

    def size(self, width, height, dark=False):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def js(self, text, *arguments):
        return self.driver.execute_script(f"return ({text})", *arguments)

    def until(self, text):
        """Wait until an expression is true."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if value := self.js(text):
                return value
            time.sleep(0.05)
        raise AssertionError(
            f"never came true: {text}; the page says {self.js('document.body.innerText.slice(0, 400)')}"
        )

    def leave(self):
        """Go nowhere, and forget what was said there."""
        self.driver.get("about:blank")
        self.driver.get_log("browser")

    def open(self, address, place=""):
        self.leave()
        self.driver.get(address + place)
        self.until(f"document.body && document.body.dataset.ready === {json.dumps(place or '#')}")

    def go(self, place):
        self.driver.execute_script("location.hash = arguments[0]", place)
        self.until(f"document.body.dataset.ready === {json.dumps(place)}")

    def keys(self, *keys):
        from selenium.webdriver.common.action_chains import ActionChains

        chain = ActionChains(self.driver)
        for key in keys:
            chain.send_keys(key)
        chain.perform()

    @property
    def place(self):
        return self.js("location.hash")

    def check(self):
        """Nothing was said on the console, nothing left the machine, nothing ran, nothing is wider than the page."""
        said = [entry for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        assert not said, said
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                address = message["params"]["request"]["url"]
                assert address.startswith(("http://127.0.0.1:", "file:///", "data:,", "about:")), address
        assert self.js("window.pwned === undefined")
        assert self.js("document.documentElement.scrollWidth <= innerWidth"), self.place


@pytest.fixture(scope="module")
def page():
    driver = start()
    yield Page(driver)
    driver.quit()


@pytest.fixture(autouse=True)
def _wide(request):
    if "page" in request.fixturenames:
        request.getfixturevalue("page").size(*WIDE)


class Served:
    def __init__(self, *folders):
        files = [evaluation_in(folder) for folder in folders]
        self.runs = open_evaluations(files) if all(files) else [ViewedRun(folder) for folder in folders]
        self.server = ViewServer(self.runs, port=0)
        self.server.in_background()
        self.address = self.server.address

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        for run in self.runs:
            run.close()


@pytest.fixture
def serve(page):
    served = []

    def start(*folders):
        served.append(Served(*folders))
        return served[-1].address

    yield start
    page.leave()
    for one in served:
        one.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two runs of 300 questions, the second one further."""
    folder = tmp_path_factory.mktemp("runs")
    for name, length, seed in (("short", 40, 0), ("long", 60, 1)):
        (folder / name).mkdir()
        run = MadeUpRun(folder / name / "experience.db", 300, seed)
        run.generations(length)
        run.log.connection.close()
    rows = [
        {"step": i, "loss": 0.1, "reward": i / 40, "replay/time/plan": 0.01, "eval_reward": i / 50} for i in range(40)
    ]
    (folder / "short" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize("size", [WIDE, NARROW])
@pytest.mark.parametrize("dark", [False, True])
def test_every_view_is_drawn(page, serve, made, size, dark):
    page.size(*size, dark=dark)
    page.open(serve(made / "short"), "#/0/run")
    page.until("document.querySelectorAll('.chart canvas').length >= 10")
    assert page.js("document.querySelector('canvas.heat').width > 100")
    page.check()
    for place, found in (
        ("#/0/questions", "document.querySelectorAll('#list tbody tr').length === 50"),
        (
            "#/0/q/7",
            "document.querySelectorAll('svg .lane').length > 0 && document.body.innerText.includes('likely to be replayed')",
        ),
        ("#/0/steps", "document.querySelectorAll('#list tbody tr').length === 40"),
        ("#/0/step/30", "document.querySelectorAll('.member').length > 100"),
    ):
        page.go(place)
        page.until(found)
        page.check()
    ground = page.js("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 200) == dark


def test_weights_of_members_come_from_the_run_s_objective(page, serve, made):
    page.open(serve(made / "short"), "#/0/step/30")
    title = page.until(
        "[...document.querySelectorAll('.member')].map(m => m.title)"
        ".find(t => t.startsWith('stored') && !t.includes('weight –'))"
    )
    weight = float(title.rsplit("gradient weight ", 1)[1])
    ratio = float(title.partition("mean log-ratio ")[2].partition(" nats")[0].replace("−", "-"))
    assert abs(weight - 0.1 * math.exp(ratio) / (math.exp(ratio) + 0.1) ** 2) < 2e-3


def test_a_hundred_thousand_questions(page, serve, tmp_path):
    run = MadeUpRun(tmp_path / "experience.db", 100_000)
    run.generations(30, length=200)
    run.log.connection.close()
    seen = len(run.seen)
    page.open(serve(tmp_path), "#/0/questions?sort=accuracy&down=1")
    page.js("[...document.querySelectorAll('button')].find(b => b.textContent === 'last').click()")
    page.until(f"document.body.innerText.includes('–{seen:,} of {seen:,}')")
    page.go("#/0/questions?search=variant%2099")
    page.until("document.querySelectorAll('#list tbody tr').length > 0")
    for place in ("#/0/run", "#/0/steps", "#/0/step/29"):
        page.go(place)
        page.until("document.querySelectorAll('canvas, #list tr, .member').length > 10")
    page.check()


def test_keys(page, serve, made):
    page.open(serve(made / "short"), "#/0/run")
    page.keys("g", "q")
    page.until("document.body.dataset.ready === '#/0/questions'")
    page.keys("j", "j", "k", "j")
    assert (
        page.js("[...document.querySelectorAll('#list tbody tr')].findIndex(r => r.classList.contains('chosen'))") == 1
    )
    page.keys("\ue007")
    page.until("document.body.dataset.ready === '#/0/q/2'")
    page.keys("j")
    page.until("document.body.dataset.ready === '#/0/q/3'")
    page.keys("k", "u")
    page.until("document.body.dataset.ready === '#/0/questions'")
    page.keys("g", "s")
    page.until("document.body.dataset.ready === '#/0/steps'")
    page.keys("?")
    assert page.until("document.querySelector('dialog[open]').innerText.includes('search questions')")
    page.keys("\ue00c")
    page.until("!document.querySelector('dialog')")
    page.keys("/")
    page.until("document.activeElement.id === 'search'")
    page.keys(*"variant 123")
    page.until("document.querySelectorAll('#list tbody tr').length === 1")
    assert page.js("document.activeElement.id") == "search"
    page.check()


def test_sorting_filters_and_pages(page, serve, made):
    page.open(serve(made / "long"), "#/0/questions?only=relearned&sort=regained&down=1")
    again = page.js("[...document.querySelectorAll('#list tbody tr')].map(r => Number(r.children[11].textContent))")
    assert again == sorted(again, reverse=True)
    assert again[0] > 1
    page.go("#/0/questions?sort=replays&down=1")
    first = page.js("[...document.querySelectorAll('#list tbody tr')].map(r => r.dataset.open)")
    page.js("[...document.querySelectorAll('button')].find(b => b.textContent === 'next').click()")
    page.until("document.body.innerText.includes('51–100 of 300')")
    second = page.js("[...document.querySelectorAll('#list tbody tr')].map(r => r.dataset.open)")
    assert len({*first, *second}) == 100
    page.js("[...document.querySelectorAll('th button')].find(b => b.textContent.startsWith('latest')).click()")
    page.until("document.body.dataset.ready === '#/0/questions?sort=accuracy'")
    page.check()


def test_the_tokens_of_two_trajectories_side_by_side(page, serve, made):
    page.open(serve(made / "short"), "#/0/q/7")
    page.until("document.querySelectorAll('del').length > 0 && document.querySelectorAll('ins').length > 0")
    page.js("[...document.querySelectorAll('button')].find(b => b.textContent === 'tokens').click()")
    page.until(
        "document.querySelectorAll('.tokens').length === 2 && document.querySelectorAll('.tokens span').length >= 32"
    )
    assert "log-prob −" in page.js("document.querySelector('.tokens span').title").replace("log-prob -", "log-prob −")
    page.check()


def test_two_runs_over_each_other(page, serve, made):
    page.open(serve(made / "short", made / "long"))
    page.until("document.querySelectorAll('canvas.heat').length === 2")
    names = page.js("[...document.querySelectorAll('.legend')].map(l => l.innerText)")
    assert any("fresh Pass@1, short" in name and "fresh Pass@1, long" in name for name in names)
    page.js("[...document.querySelectorAll('button')].find(b => b.textContent === 'over tokens').click()")
    page.until("[...document.querySelectorAll('button[aria-pressed=true]')].some(b => b.textContent === 'over tokens')")
    page.check()
    page.go("#/1/q/9")
    assert page.until("[...document.querySelectorAll('a')].some(a => a.textContent === 'the same in short')")
    page.check()


def test_a_run_that_grows_is_followed(page, serve, tmp_path):
    run = MadeUpRun(tmp_path / "experience.db", 200)
    run.generations(5, length=40)
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": "now"}
    (tmp_path / "experience.db.owner").write_text(json.dumps(owner))
    page.open(serve(tmp_path), "#/0/steps")
    page.until("document.querySelector('.live').classList.contains('on')")
    run.generations(6, length=40)
    page.until("document.querySelectorAll('#list tbody tr').length === 11")
    run.log.connection.close()
    page.check()


def test_an_exported_folder_and_a_run_without_a_log(page, serve, made, tmp_path):
    with LogReader(made / "short" / "experience.db") as reader:
        export(reader, tmp_path / "exported")
    address = serve(tmp_path / "exported")
    page.open(address, "#/0/run")
    assert page.js("document.body.innerText.includes('an exported folder holds what was stored')")
    page.go("#/0/questions?only=stored")
    page.until("document.querySelectorAll('#list tbody tr').length > 5")
    page.check()
    (tmp_path / "plain").mkdir()
    shutil.copy(made / "short" / "metrics.jsonl", tmp_path / "plain")
    page.open(serve(tmp_path / "plain"), "#/0/run")
    assert page.js("document.body.innerText.includes('keeps no experience')")
    page.until("document.querySelectorAll('.chart canvas').length >= 2")
    page.check()


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_hostile_texts_are_shown_and_never_obeyed(page, serve, tmp_path, size):
    page.size(*size)
    folder = hostile_run(tmp_path / "<img src=x onerror=window.pwned=9>")
    address = serve(folder)
    places = [
        "#/0/run",
        "#/0/questions",
        "#/0/steps",
        "#/0/step/1",
        "#/0/questions?search=%3Cscript%3E",
        *(f"#/0/q/{n}" for n in range(1, 15)),
    ]
    for place in places:
        page.open(address, place)
        page.check()
    page.go("#/0/q/7")
    assert page.js("[...document.querySelectorAll('.control')].map(c => c.textContent).includes('U+202E')")
    page.go("#/0/q/1")
    assert page.js("document.body.innerText.includes('<script>window.pwned=1</script>')")
    page.js("[...document.querySelectorAll('button')].find(b => b.textContent === 'tokens').click()")
    page.until("document.querySelectorAll('.tokens span').length >= 4")
    page.check()


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_a_file_opens_from_disk_without_a_server(page, made, tmp_path, size):
    page.size(*size)
    runs = [
        ViewedRun(made / "short"),
        ViewedRun(hostile_run(tmp_path / "hostile"), "</script><script>window.pwned=10</script>"),
    ]
    write_page(runs, tmp_path / "page.html", 30)
    address = (tmp_path / "page.html").as_uri()
    page.open(address)
    page.until(
        "document.querySelectorAll('canvas.heat').length === 2 && document.querySelectorAll('.chart canvas').length > 8"
    )
    page.check()
    for place in ("#/0/questions", "#/1/questions", "#/1/q/2", "#/1/q/7", "#/0/steps"):
        page.go(place)
        page.check()
    page.go("#/0/questions?sort=replays&down=1&search=crate")
    replays = page.js("[...document.querySelectorAll('#list tbody tr')].map(r => Number(r.children[9].textContent))")
    assert replays == sorted(replays, reverse=True)
    assert len(replays) == 30
    page.keys("j", "\ue007")
    page.until("document.body.dataset.ready.startsWith('#/0/q/')")
    page.until("document.querySelectorAll('svg .lane').length > 0")
    page.go("#/0/steps")
    page.js("document.querySelector('#list a').click()")
    page.until("document.querySelectorAll('.member').length > 50")
    page.go("#/0/q/299999")
    assert page.js("document.body.innerText.includes('exgrpo view RUN shows all of it')")
    page.check()


@pytest.mark.parametrize("size", [WIDE, NARROW])
@pytest.mark.parametrize("dark", [False, True])
def test_an_evaluation_of_hostile_texts_is_shown_and_never_obeyed(page, serve, tmp_path, size, dark):
    page.size(*size, dark=dark)
    address = serve(make_evaluation(tmp_path / "evaluation"))
    page.open(address)
    page.until("document.body.innerText.includes('Told apart?') && document.querySelectorAll('td').length > 10")
    page.check()
    for place in (
        "#/0/run",
        "#/1/questions",
        "#/1/questions?only=differ&sort=tokens&down=1",
        *(f"#/1/q/{n}" for n in range(1, 15)),
    ):
        page.open(address, place)
        page.check()
    page.go("#/1/q/7")
    page.until("document.querySelectorAll('input[name=pickA]').length === 8")
    assert page.js("[...document.querySelectorAll('.control')].map(c => c.textContent).includes('U+202E')")
    page.js("[...document.querySelectorAll('button')].find(b => b.textContent === 'differences').click()")
    page.until("document.querySelectorAll('del, ins').length > 0")
    page.check()


def test_the_keys_and_orders_of_an_evaluation(page, serve, tmp_path):
    page.open(serve(make_evaluation(tmp_path / "evaluation")), "#/0/run")
    page.keys("g", "s")  # there are no steps
    page.keys("g", "q")
    page.until("document.body.dataset.ready === '#/0/questions'")
    page.js("[...document.querySelectorAll('th button')].find(b => b.textContent.startsWith('right')).click()")
    page.until("document.body.dataset.ready === '#/0/questions?sort=accuracy'")
    shares = page.js("[...document.querySelectorAll('#list progress')].map(p => p.value / p.max)")
    assert shares == sorted(shares)
    page.keys("j", "j", "\ue007")
    page.until("document.body.dataset.ready.startsWith('#/0/q/')")
    page.keys("u", "?")
    assert "results" in page.until("document.querySelector('dialog[open]').innerText")
    page.check()


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_an_evaluation_s_file_opens_from_disk(page, tmp_path, size):
    page.size(*size)
    write_page(
        open_evaluations([make_evaluation(tmp_path / "evaluation") / "evaluation.db"]), tmp_path / "page.html", 9
    )
    page.open((tmp_path / "page.html").as_uri())
    page.check()
    page.go("#/1/questions")
    assert page.js("document.querySelectorAll('#list tbody tr').length") == 9
    page.js("document.querySelector('#list a').click()")
    page.until("document.querySelectorAll('input[name=pickA]').length === 8")
    page.check()
