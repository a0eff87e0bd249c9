// The list of questions: filters, search, order, pages.
import { chips, h, table } from "./dom.js";
import { ask, isFile } from "./data.js";
import { spark } from "./charts.js";
import { number, plural, shown } from "./text.js";

const LOOKS = { forgotten: "wrong", unsolved: "wrong", hard: "warn", easy: "right", solved: "right" };
const PAGE_SIZE = 50;

export function stateTag([name, meaning]) {
	return h("span", { class: "tag " + (LOOKS[name] || ""), title: meaning }, name);
}

// rows: what draws them, of another kind of list.
export async function questionsPage(state, item, rows = list) {
	const query = { only: "all", sort: "number", down: "", search: "", start: "0", ...state.query };
	const found = await ask(state.run + "/questions", { ...query, count: PAGE_SIZE });
	state.listed({ ids: found.rows.map((q) => q.id), query, total: found.total, start: found.start });
	const go = (change) => state.go("questions", { ...query, start: "0", ...change });
	const page = h("div.page.stack");
	const search = h("input", { type: "search", id: "search", placeholder: "search text, answer, key or q:12", "aria-label": "search questions", value: query.search });
	let wait = null;
	search.addEventListener("input", () => { clearTimeout(wait); wait = setTimeout(() => go({ search: search.value }), 250); });
	page.append(h("div.row.middle", h("h1", "Questions"), h("span.muted.tab", plural(found.total, "question")), h("div.push", search)));
	page.append(chips("filter", found.filters.map((f) => [f.name, [f.label, h("span.faint.tab", " " + number(f.count))], f.meaning]), query.only, (only) => go({ only })));
	page.append(found.rows.length ? h("section.card.scroll", rows(found, state, sorter(found, query, go))) : nothing(found));
	if (found.total > PAGE_SIZE) page.append(pager(found, go));
	return page;
}

function nothing(found) {
	const more = isFile ? " This file holds a part of the run." : "";
	return h("p.empty", shown(found.empty + more));
}

// Of an order the heading that sorts by it.
function sorter(found, query, go) {
	return (name) => {
		const { label: text, meaning } = found.sorts[name];
		const on = query.sort === name, down = query.down === "1";
		const first = ["number", "accuracy", "solved"].includes(name) ? "" : "1";
		return h("button", { class: on ? "on" : null, title: "sort by " + meaning, onclick: () => go({ sort: name, down: on ? (down ? "" : "1") : first }) }, text + (on ? (down ? " ↓" : " ↑") : ""));
	};
}

function list(found, state, head) {
	const count = (name, value, wide) => ({ head: head(name), num: true, class: wide ? "wide" : "", cell: value });
	return table([
		count("number", (q) => q.id),
		{ head: "question", class: "words", cell: (q) => h("a", { href: state.link("q/" + q.id), dir: "auto" }, shown(q.text || "(no text)")) },
		{ head: "gold", class: "wide", cell: (q) => h("span.mono", shown(q.gold ?? "–")) },
		{ head: "accuracy over time", title: "right of the scorable completions of each fresh group", cell: (q) => spark(q.curve) },
		count("accuracy", (q) => (q.scorable ? q.successes + "/" + q.scorable : "–")),
		count("solved", (q) => (q.completions ? Math.round((100 * q.solved) / q.completions) + " %" : "–"), true),
		{ head: "state", cell: (q) => [stateTag(q.state), q.disagree ? [" ", h("span.tag.warn", { title: "an audit found its verifiers to disagree" }, "disagree")] : null] },
		count("groups", (q) => number(q.groups), true), count("stored", (q) => number(q.stored), true), count("replays", (q) => number(q.replays)),
		count("uses", (q) => number(q.uses), true), count("regained", (q) => number(q.regained), true), count("observed", (q) => number(q.observed_at), true),
	], found.rows, (q) => state.link("q/" + q.id));
}

export function pager(found, go, size = PAGE_SIZE) {
	const last = Math.min(found.start + size, found.total);
	const to = (start) => () => go({ start: String(Math.max(0, start)) });
	return h("div.row.middle.tab",
		h("button", { disabled: found.start === 0, onclick: to(0) }, "first"),
		h("button", { disabled: found.start === 0, onclick: to(found.start - size) }, "previous"),
		h("span.muted", number(found.start + 1) + "–" + number(last) + " of " + number(found.total)),
		h("button", { disabled: last >= found.total, onclick: to(found.start + size) }, "next"),
		h("button", { disabled: last >= found.total, onclick: to((Math.ceil(found.total / size) - 1) * size) }, "last"));
}
