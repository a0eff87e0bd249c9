// The frame: where one is, keys, light and dark, and keeping up with a run that grows.
import { fromTemplate, h } from "./dom.js";
import { about, ask, isFile } from "./data.js";
import { number, shown } from "./text.js";

const app = document.getElementById("app");
const view = h("main", { id: "view" });
const live = h("span.live", h("i"), h("span"));
const THEMES = { auto: "◐", light: "○", dark: "●" };
const EVERY = 3000;

const state = {
	runs: [], run: 0, overlay: false, query: {}, axis: "steps", textMode: null, list: null, step: null, version: null,
	link: (path, run = state.run) => "#/" + run + "/" + path,
	go: (path, query) => { location.hash = hashOf(path, query); },
	setAxis: (axis) => { state.axis = axis; render(); },
	listed: (list) => { state.list = list; },
	neighbours,
};

function hashOf(path, query) {
	const usual = path === "questions" ? { only: "all", sort: "number", start: "0" } : {};
	const kept = Object.entries(query || {}).filter(([name, value]) => value !== "" && value !== undefined && usual[name] !== value);
	return "#/" + (state.overlay && path === "run" ? "all" : state.run) + "/" + path + (kept.length ? "?" + new URLSearchParams(kept) : "");
}

function readHash() {
	const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
	const parts = path.split("/").filter(Boolean);
	const first = parts.shift();
	state.overlay = first === "all" || (first === undefined && state.runs.length > 1);
	state.run = Math.min(Number(first) || 0, state.runs.length - 1);
	state.query = Object.fromEntries(new URLSearchParams(query || ""));
	state.place = parts[0] || "run";
	state.item = parts[1];
}

let PAGES, TABS; // place -> page of (state, item); place, text, key and page of one row of each tab
let turn = 0;

async function render(keepScroll = false) {
	const mine = ++turn;
	readHash();
	frame();
	const focus = document.activeElement && document.activeElement.id === "search" ? document.activeElement.selectionStart : null;
	let page;
	try {
		page = await (PAGES[state.place] || PAGES.run)(state, state.item);
	} catch (error) {
		page = h("div.page", h("p.empty.error", shown(error.message)));
	}
	if (mine !== turn) return;
	const scroll = window.scrollY;
	view.replaceChildren(page);
	window.scrollTo(0, keepScroll || focus !== null ? scroll : 0);
	if (focus !== null && document.getElementById("search")) {
		const field = document.getElementById("search");
		field.focus();
		field.setSelectionRange(focus, focus);
	}
	if (state.toSearch) document.getElementById("search")?.focus();
	state.toSearch = false;
	document.body.dataset.ready = location.hash || "#";
	document.title = [(view.querySelector("h1") || view).textContent.slice(0, 60), ...state.runs.map((run) => run.name), "exgrpo"].join(" · ");
}

function frame() {
	const tab = ([path, text, key, one]) => h("a", { href: state.overlay && path === "run" ? "#/all/run" : state.link(path), "aria-current": [path, one].includes(state.place) ? "page" : null, title: "g " + key }, text);
	const choice = state.runs.length > 1 ? h("select", { "aria-label": "run", title: "which run is shown", onchange: (event) => { location.hash = "#/" + event.target.value + "/" + (event.target.value === "all" || ["q", "step"].includes(state.place) ? "run" : state.place); } },
		[["all", "all, overlaid"], ...state.runs.map((run, i) => [String(i), run.name])].map(([value, text]) => { const option = h("option", { value }, shown(text).map((part) => (part instanceof Node ? part.textContent : part))); option.selected = value === (state.overlay ? "all" : String(state.run)); return option; }))
		: h("span.brand", shown(state.runs[0] ? state.runs[0].name : "exgrpo"));
	const top = h("header.top", h("div", choice, h("nav", { "aria-label": "views" }, TABS.map(tab)),
		h("span.push.row.middle", live, h("button", { class: "quiet", title: "light, dark, or as the system", "aria-label": "colours", onclick: nextTheme }, THEMES[themeNow()]), h("button", { class: "quiet", title: "keys and words (?)", "aria-label": "help", onclick: help }, "?"))));
	const old = app.querySelector(".top");
	if (old) old.replaceWith(top);
	else app.prepend(top);
}


function neighbours(id) {
	const [before, after] = [beside(id, -1), beside(id, 1)];
	const to = (other, key, text) => h("a", { href: other === null ? null : state.link("q/" + other), class: other === null ? "faint" : null, title: key }, text);
	return [to(before, "k", "← previous"), to(after, "j", "next →")];
}

function beside(id, by) {
	const ids = state.list ? state.list.ids : [];
	const place = ids.indexOf(Number(id));
	if (place < 0) return isFile || Number(id) + by < 0 ? null : Number(id) + by;
	return ids[place + by] ?? null;
}

function move(by) {
	if (state.place === "q") {
		const next = beside(state.item, by);
		if (next !== null) location.hash = state.link("q/" + next);
		return;
	}
	if (state.place === "step" && state.step) {
		const next = by > 0 ? state.step.next : state.step.previous;
		if (next !== null) location.hash = state.link("step/" + next);
		return;
	}
	const rows = [...document.querySelectorAll("#list tbody tr")];
	if (!rows.length) return;
	const at = rows.findIndex((row) => row.classList.contains("chosen"));
	const next = rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by))];
	rows.forEach((row) => row.classList.toggle("chosen", row === next));
	next.scrollIntoView({ block: "nearest" });
}


let waitsForView = 0;

document.addEventListener("keydown", (event) => {
	if (event.ctrlKey || event.metaKey || event.altKey) return;
	if (event.key === "Escape" && event.target.matches("input")) { event.target.blur(); return; }
	if (event.target.matches("input[type=search], select, textarea")) return;
	const chord = Date.now() - waitsForView < 1500;
	waitsForView = event.key === "g" ? Date.now() : 0;
	const tab = chord && TABS.find(([, , key]) => key === event.key);
	if (tab) location.hash = state.link(tab[0], tab[0] === "run" && state.runs.length > 1 ? "all" : state.run);
	else if (event.key === "j" || event.key === "k") move(event.key === "j" ? 1 : -1);
	else if (event.key === "Enter" && !event.target.matches("a, button")) { const row = document.querySelector("#list tr.chosen"); if (row?.dataset.open) location.hash = row.dataset.open; }
	else if (event.key === "u" && ["q", "step"].includes(state.place)) state.go(state.place === "q" ? "questions" : "steps", state.place === "q" && state.list ? state.list.query : {});
	else if (event.key === "?") help();
	else if (event.key === "/") { event.preventDefault(); toSearch(); }
});

function toSearch() {
	state.toSearch = state.place !== "questions";
	if (state.toSearch) state.go("questions", {});
	else document.getElementById("search")?.focus();
}

function help() {
	const box = h("dialog", fromTemplate(PAGES.help), about ? h("p.small.muted", shown(about.text)) : null, h("form", { method: "dialog" }, h("button", { type: "submit" }, "close")));
	box.addEventListener("close", () => box.remove());
	document.body.append(box);
	box.showModal();
}


function themeNow() {
	return document.documentElement.dataset.theme || "auto";
}

function setTheme(name) {
	if (name === "auto") delete document.documentElement.dataset.theme;
	else document.documentElement.dataset.theme = name;
	try { localStorage.setItem("exgrpo-theme", name); } catch { /* a page of a file may keep nothing */ }
}

function nextTheme() {
	const names = Object.keys(THEMES);
	setTheme(names[(names.indexOf(themeNow()) + 1) % names.length]);
	render(true);
}

async function keepUp() {
	if (document.hidden) return;
	try {
		const found = await Promise.all((state.overlay ? state.runs.map((_, i) => i) : [state.run]).map((i) => ask(i + "/version")));
		const version = found.map((one) => one.version).join(" "), growing = found.some((one) => one.growing);
		live.classList.toggle("on", growing);
		live.lastChild.textContent = growing ? "live" : "";
		live.title = growing ? "a process writes this run now; the page follows" : "";
		const changed = state.version !== null && state.version.split(" ").length === found.length && state.version !== version;
		state.version = version;
		if (changed && ["run", "steps"].includes(state.place) && state.query.start === undefined) await render(true);
		else if (changed && state.place === "questions" && document.activeElement?.id !== "search") await render(true);
	} catch (error) {
		live.classList.remove("on");
		live.lastChild.textContent = "the server is gone";
	}
}

export async function start(pages, tabs) {
	[PAGES, TABS] = [pages, tabs];
	try { setTheme(localStorage.getItem("exgrpo-theme") || "auto"); } catch { /* as above */ }
	app.append(view);
	try {
		state.runs = isFile ? about.runs : await ask("runs");
	} catch (error) {
		view.append(h("p.page.error", shown(error.message)));
		return;
	}
	window.addEventListener("hashchange", () => { state.version = null; render(); });
	matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => render(true));
	await render();
	if (isFile) { live.lastChild.textContent = number(about.questions) + " questions in this file"; return; }
	await keepUp();
	setInterval(keepUp, EVERY);
}
