"""The page as a person uses it: a real browser, a real server, sessions that run meanwhile."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx2
from playwright.sync_api import Page, Route, expect

from tests.page.programs import ask, map_reduce, rag
from weftline import Client
from weftline.local import local_server


def open_session(page: Page, url: str, session: str) -> None:
    page.goto(f"{url}/ui/#/s/{session}")


def test_the_list_names_new_sessions_by_itself(page: Page, url: str, client: Client) -> None:
    """A session that starts after the page was opened appears, and a link opens it."""
    page.goto(f"{url}/ui")
    expect(page.get_by_role("heading", name="weftline")).to_be_visible()
    with client.session() as session:
        session.submit([ask("headline", "Write one.", "x")])
        row = page.get_by_role("row").filter(has_text=session.id[:20])
        expect(row).to_contain_text("headline")
        expect(row).to_contain_text("so far")
        row.get_by_role("link").click()
        expect(page).to_have_url(f"{url}/ui/#/s/{session.id}")
        expect(page.locator("#graph .node")).to_have_count(1)


def test_a_running_session_is_followed_to_its_end(page: Page, url: str, client: Client) -> None:
    """States change as tasks run. At the end the critical path is told and marked."""
    with client.session() as session:
        session.submit([ask("first", "Begin", "a", "topic"), ask("last", "End", "z", "a")])
        open_session(page, url, session.id)
        first = page.locator("#graph").get_by_role("button", name="first")
        expect(first).to_have_accessible_name("first, waiting, waiting")
        expect(page.locator(".sentence")).to_have_text("nothing has ended yet")
        session.set("topic", "rivers")
        expect(page.locator("#graph .node.done.critical")).to_have_count(2)
        expect(page.locator("#graph .edge.critical")).to_have_count(1)
        expect(page.locator(".sentence")).to_contain_text("of the time was")
        expect(page.locator("#timeline .bar")).to_have_count(2)
    expect(page.get_by_text("Closed after")).to_be_visible()


def test_a_choice_in_one_view_is_made_in_all(page: Page, url: str, client: Client) -> None:
    """The address names the selected call, so a reload and the back button keep it."""
    session = map_reduce(client, 3)
    session.get("summary")
    open_session(page, url, session.id)
    page.locator("#timeline").get_by_role("button", name="map 1").click()
    chosen = page.locator("#graph .node.selected")
    expect(chosen).to_have_count(1)
    expect(page.locator("#timeline .bar.selected")).to_have_count(1)
    expect(page.get_by_role("region", name="prompt")).to_contain_text("Summarise part 1.")
    expect(page.locator("#detail dd").first).to_have_text("done")
    address = page.url
    page.reload()
    expect(page.locator("#graph .node.selected")).to_have_count(1)
    expect(page.get_by_role("region", name="prompt")).to_contain_text("Summarise part 1.")
    page.locator("#graph").get_by_role("button", name="reduce").click()
    expect(page.get_by_role("heading", name="reduce")).to_be_visible()
    page.go_back()
    expect(page).to_have_url(address)
    expect(page.get_by_role("heading", name="map 1")).to_be_visible()


def test_a_graph_shows_groups_waits_and_cached_prefill(page: Page) -> None:
    """Maps that should end together have a frame. The join waited for them, and a second session
    finds most of its prompt in the cache.
    """
    words = ("--engine", "null", "--null-mode", "words", "--null-step-s", "0.01")
    with local_server(*words) as url, Client(url) as client:
        for _ in range(2):
            session = map_reduce(client, 3)
            session.get("summary", criteria="latency")
        open_session(page, url, session.id)
        expect(page.locator("#graph .node.done")).to_have_count(4)
        frame = page.get_by_role("img", name="task group of 3: they should end together")
        expect(frame).to_have_count(1)
        bars = page.locator("#timeline")
        join = bars.get_by_role("button", name="reduce")
        expect(join).to_have_accessible_name(re.compile("waited .* for an input"))
        expect(join.locator(".phase-input")).to_have_count(1)
        expect(join.locator(".phase-tool")).to_have_count(0)
        expect(join.locator(".phase-cached")).to_have_count(1)
        assert [row["group"] is not None for row in session.graph()["calls"]] == [True] * 3 + [
            False
        ]


def test_the_keyboard_alone_is_enough(page: Page, url: str, client: Client) -> None:
    """Every box is a button with a name. Enter selects it and the focus stays on it."""
    session = map_reduce(client, 2)
    session.get("summary")
    open_session(page, url, session.id)
    reduce = page.locator("#graph").get_by_role("button", name="reduce")
    reduce.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="reduce")).to_be_visible()
    expect(page.locator("#graph [data-task]:focus")).to_have_count(1)


def test_the_graph_is_zoomed_and_fitted(page: Page, url: str, client: Client) -> None:
    """Buttons, keys and the wheel. A chain that is wider than the page fits into its view."""
    chain = [ask("step 0", "Begin.", "v0", tokens=1)]
    chain += [ask(f"step {n}", "Go on.", f"v{n}", f"v{n - 1}", tokens=1) for n in range(1, 12)]
    session = client.session()
    session.submit(chain)
    session.get("v11")
    open_session(page, url, session.id)
    expect(page.locator("#graph .node.done")).to_have_count(12)
    bar, view = page.locator(".zoom"), page.locator("#graph")
    wider = "(view => view.scrollWidth > view.clientWidth)(document.getElementById('graph'))"
    expect(bar.get_by_role("status")).to_have_text("60 %")  # as far as it can be read
    page.wait_for_function(wider)  # an event that arrives now draws the graph anew
    fit = bar.get_by_role("button", name="fit the graph into its view")
    fit.click()
    expect(bar.get_by_role("status")).not_to_have_text("60 %")
    page.wait_for_function(f"!{wider}")
    expect(fit).to_be_focused()
    bar.get_by_role("button", name="zoom to 100 %").click()
    expect(bar.get_by_role("status")).to_have_text("100 %")
    bar.get_by_role("button", name="zoom in").click()
    expect(bar.get_by_role("status")).to_have_text("125 %")
    page.locator("#graph").get_by_role("button", name="step 0").focus()
    page.keyboard.press("-")
    expect(bar.get_by_role("status")).to_have_text("100 %")
    view.hover()
    page.keyboard.down("Control")
    page.mouse.wheel(0, 100)
    page.keyboard.up("Control")
    expect(bar.get_by_role("status")).to_have_text("80 %")
    page.keyboard.press("0")
    expect(bar.get_by_role("status")).to_have_text("100 %")
    session.close()


def test_values_are_text_and_never_markup(page: Page, url: str, client: Client) -> None:
    """A name or a value with tags is shown as it is. The server forbids inline scripts, too."""
    with client.session() as session:
        session.set("evil", "<img src=x onerror=\"document.title='taken'\">")
        session.submit([ask("<b>bold</b>", "Say <i>it</i>", "x", "evil")])
        session.get("x")
        open_session(page, url, session.id)
        page.locator("#graph .node").click()
        expect(page.get_by_role("region", name="prompt")).to_contain_text("<img src=x onerror=")
        expect(page.get_by_role("heading", name="<b>bold</b>")).to_be_visible()
        assert page.title() == "weftline"
        assert page.locator("main img, main b, main i").count() == 0


def test_ten_thousand_calls_stay_usable(page: Page, url: str, client: Client) -> None:
    """Boxes of equal names become one, and only the visible rows of the timeline are drawn."""
    calls = [ask("map", f"Summarise {n}.", f"s{n}", tokens=1) for n in range(10_000)]
    session = client.session()
    session.submit(calls)
    session.get("s9999")
    open_session(page, url, session.id)
    box = page.locator("#graph .node")
    expect(box).to_have_attribute(
        "aria-label", "map × 10,000, done, 10,000 done, on the critical path"
    )
    assert page.locator("#timeline .bar").count() < 100
    page.locator("#timeline").evaluate("box => box.scrollTo(0, box.scrollHeight)")
    expect(page.locator("#timeline .bar").last).to_be_visible()
    session.close()


def test_a_server_that_restarts_is_found_again(page: Page) -> None:
    """The page says that the server is away, and goes on by itself when it is back."""
    with local_server("--engine", "null") as url, Client(url) as client:
        port = int(url.rpartition(":")[2])
        client.session()
        page.goto(f"{url}/ui/")
        expect(page.locator("#sessions tbody tr")).to_have_count(1)
    expect(page.get_by_text("The server cannot be reached. Trying again …")).to_be_visible()
    with local_server("--engine", "null", port=port):
        expect(page.get_by_text("No session yet. Run a program.")).to_be_visible()


def test_a_server_with_keys_asks_for_one(page: Page, tmp_path: Path) -> None:
    """A wrong key is asked for again. While the server has not answered there is no form, in which
    a key would be lost. A session of another tenant does not exist.
    """
    config = tmp_path / "weftline.toml"
    config.write_text('[keys]\na = "key-a"\nb = "key-b"\n')
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    with local_server("--engine", "null", "--config", str(config)) as url:
        with Client(url, api_key="key-a") as client:
            session = client.session()
        page.goto(f"{url}/ui/")
        for key in ("wrong", "key-b"):
            expect(page.get_by_text("This server needs an API key.")).to_be_visible()
            page.get_by_label("API key").fill(key)
            page.route("**/v1/sessions?*", hold)
            page.get_by_role("button", name="Open").click()
            expect(page.get_by_text("Asking the server")).to_be_visible()
            expect(page.get_by_label("API key")).to_have_count(0)
            while not held:
                page.wait_for_timeout(10)
            held.pop().continue_()
            page.unroute("**/v1/sessions?*")
        expect(page.get_by_text("No session yet. Run a program.")).to_be_visible()
        page.goto(f"{url}/ui/#/s/{session.id}")
        expect(page.get_by_text("no session 's_")).to_be_visible()


def test_the_page_asks_no_other_host(page: Page, url: str, client: Client) -> None:
    """Every request goes to the server that sent the page."""
    asked: set[str] = set()
    page.on("request", lambda request: asked.add(httpx2.URL(request.url).host))
    session = map_reduce(client, 2)
    open_session(page, url, session.id)
    expect(page.locator("#graph .node.done")).to_have_count(3)
    assert asked == {"127.0.0.1"}


def test_it_looks_right_in_light_and_dark(page: Page, url: str, client: Client) -> None:
    """The background follows the system's choice, and text stays readable on it."""
    session = map_reduce(client, 6)
    session.get("summary")
    open_session(page, url, session.id)
    expect(page.locator("#graph .node.done")).to_have_count(7)
    back = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('#graph .node text')).fill"
    assert (page.evaluate(back), page.evaluate(ink)) == ("rgb(255, 255, 255)", "rgb(27, 31, 36)")
    page.emulate_media(color_scheme="dark")
    assert (page.evaluate(back), page.evaluate(ink)) == ("rgb(15, 19, 24)", "rgb(230, 237, 243)")


def test_pictures_for_the_documentation(
    page: Page, url: str, client: Client, pictures: Path
) -> None:
    """A map-reduce while it runs, and after its end with a call selected."""
    page.set_viewport_size({"width": 1280, "height": 760})
    session = map_reduce(client, 6, tokens=2000)
    open_session(page, url, session.id)
    expect(page.locator("#graph .node.running")).not_to_have_count(0)
    page.screenshot(path=pictures / "page-running.png")
    session.close()
    session = map_reduce(client, 6, tokens=60)
    session.get("summary")
    open_session(page, url, session.id)
    expect(page.locator("#graph .node.done")).to_have_count(7)
    page.locator("#graph").get_by_role("button", name="reduce").click()
    expect(page.get_by_role("region", name="prompt")).to_be_visible()
    page.screenshot(path=pictures / "page-map-reduce.png")


def test_the_routes_are_described_and_can_be_tried(page: Page, url: str) -> None:
    """/docs shows every route from this server alone, and sends what its reader writes."""
    hosts: set[str] = set()
    page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
    page.goto(f"{url}/docs")
    route = page.locator("details").filter(has_text="POST /v1/completions")
    route.locator("summary").click()
    expect(route.get_by_role("row").filter(has_text="max_tokens").first).to_contain_text("integer")
    route.get_by_role("textbox", name="request body").fill(
        '{"prompt": "<b>x</b>", "max_tokens": 2}'
    )
    route.get_by_role("button", name="Send POST").click()
    expect(route.locator("output")).to_contain_text("text_completion")
    page.get_by_role("link", name="Placeholder", exact=True).first.click(force=True)
    expect(page.locator("#type-Placeholder")).to_be_in_viewport()
    assert hosts == {url.split("/")[2]}


def test_a_session_is_saved_as_a_trace(page: Page, url: str, client: Client) -> None:
    """The button saves what Perfetto opens, under the session's name."""
    with client.session() as session:
        session.submit([ask("headline", "Write one.", "x")])
        session.get("x")
        open_session(page, url, session.id)
        with page.expect_download() as saved:
            page.get_by_role("button", name="Download the trace").click()
        assert saved.value.suggested_filename == f"{session.id}.json"
        events = json.loads(saved.value.path().read_text())["traceEvents"]
    assert {"queue", "fill", "generate"} <= {event["name"] for event in events}


def test_a_picture_of_rag_while_it_runs(page: Page, pictures: Path) -> None:
    """Steps beside calls have their own shape; each note waits for its own search."""
    page.set_viewport_size({"width": 1600, "height": 860})
    config = str(Path(__file__).parent / "rag.toml")
    slow = ("--null-mode", "fixed", "--null-step-s", "0.02", "--config", config)
    with (
        local_server("--engine", "null", *slow) as url,
        Client(url) as client,
        client.session() as session,
    ):
        rag(session)
        open_session(page, url, session.id)
        graph = page.locator("#graph")
        expect(graph.locator(".node")).to_have_count(15)
        expect(graph.get_by_role("button", name=re.compile("^answer, running"))).to_be_visible()
        expect(graph.locator(".node.step.done")).to_have_count(8)
        page.get_by_role("button", name=re.compile("^note, done")).first.click()
        expect(page.get_by_role("region", name="prompt")).to_be_visible()
        page.mouse.move(0, 0)
        page.screenshot(path=pictures / "page-rag.png")
        page.emulate_media(color_scheme="dark")
        page.screenshot(path=pictures / "page-rag-dark.png")
