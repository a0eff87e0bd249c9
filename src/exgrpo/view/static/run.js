// The page of a run, or of several laid over each other.
import { append, card, chips, facts, h, table } from "./dom.js";
import { ask } from "./data.js";
import { chartCard } from "./charts.js";
import { heatCard } from "./heat.js";
import { compact, harmless, number, shown } from "./text.js";

export async function runPage(state) {
	const chosen = state.overlay ? state.runs.map((_, i) => i) : [state.run];
	const found = await Promise.all(chosen.map((i) => ask(i + "/overview")));
	const page = h("div.page.stack");
	page.append(heading(found, state), ...found.flatMap((run) => run.missing.map((why) => h("p.note", shown(found.length > 1 ? run.name + ": " + why : why)))));
	page.append(found.length > 1 ? countsOf(found) : figures(found[0].counts));
	for (const run of found) if (run.heat) page.append(heatCard(run.heat, found.length > 1 ? "Questions by accuracy: " + run.name : null));
	for (const run of found) if (run.marks) page.append(marks(run, found.length > 1));
	const charts = found[0].charts.map((_, i) => found.map((run) => run.charts[i]));
	const filled = charts.filter((same) => same.some((one) => one.lines.length));
	page.append(h("div.grid", filled.map((same) => chartCard(same, found, state.axis))));
	for (const run of found) if (run.options) page.append(options(run, found.length > 1));
	append(page, [notShown(charts.filter((same) => !filled.includes(same) && !same[0].hidden))]);
	return page;
}

function heading(found, state) {
	const says = found.length > 1 ? found.map((run, i) => [i ? " and " : "", h("span", { class: "k" + (i % 6 + 1) }, shown(run.name))]) : shown(found[0].name);
	const axis = chips("horizontal axis", [["steps", "over steps", "optimizer steps"], ["tokens", "over tokens", "completion tokens generated so far: the fair axis for two runs"]], state.axis, state.setAxis);
	return h("div.row.middle", h("h1", says), h("span.muted.small", found.length === 1 ? shown(found[0].path) : null), h("div.push", axis));
}

function figures(counts) {
	return h("section.card.figures", counts.map((one) =>
		h("div", { title: one.meaning + ": " + number(one.value) }, h("b", compact(one.value)), h("span", one.label))));
}

function countsOf(found) {
	const columns = [{ head: "", cell: (row) => h("span", { title: row.meaning }, row.label) }, ...found.map((run, i) => ({
		head: h("span", { class: "k" + (i % 6 + 1) }, shown(run.name)), num: true,
		cell: (row) => number(run.counts.find((one) => one.label === row.label)?.value),
	}))];
	return h("section.card.scroll", table(columns, found.reduce((all, run) => (run.counts.length > all.length ? run.counts : all), [])));
}

// Charts without a line, in one place, with the reason.
function notShown(charts) {
	return charts.length ? card("Not shown", facts(charts.map((same) => [same[0].title, same.find((one) => one.empty).empty]))) : null;
}

// Alarms and reasons of idle replay, in the order of time.
function marks(run, several) {
	const box = card(several ? "Alarms and idle replay: " + run.name : "Alarms and idle replay", null);
	const rows = [...run.marks].sort((a, b) => a.step - b.step);
	if (!rows.length) {
		box.append(h("p.empty", run.planned ? "No alarm, and every generation replayed something." : "No generation was planned here."));
		return box;
	}
	const columns = [
		{ head: "step", num: true, cell: (m) => number(m.step) + (m.to > m.step ? "–" + number(m.to) : "") },
		{ head: "what", cell: (m) => h("span", { class: m.kind === "alarm" ? "tag warn" : "tag" }, m.kind === "alarm" ? "alarm: " + m.reason : "idle") },
		{ head: "why", cell: (m) => [shown(m.text), m.first && m.first !== m.text ? h("div.faint.small", "at first: ", shown(m.first)) : null] },
		{ head: "generations", num: true, class: "wide", cell: (m) => (m.count ? number(m.count) : "") },
	];
	box.append(h("div.marks", table(columns, rows)));
	return box;
}

function options(run, several) {
	const { options: found, facts: pairs } = run;
	const box = card(several ? "Options: " + run.name : "Options", null);
	box.firstChild.append(h("span.muted", found.preset ? ["preset ", h("b", shown(found.preset))] : "no preset was written down"));
	if (found.summary) box.append(h("p.muted", found.summary));
	box.append(facts(pairs.map(([name, value]) => [name, shown(value)])), h("p", null));
	const place = h("div");
	const choice = h("div.chips");
	const sorts = [
		["own", "over the preset", found.rows.filter((o) => o.own), "Nothing was set over the preset."],
		["differs", "differ from the defaults", found.rows.filter((o) => o.differs), "All options have their defaults."],
		["all", "all", found.rows, "The run wrote no options down."],
		...(found.others.length ? [["others", "of the host", found.others, ""]] : []),
	];
	const show = ([name, , rows, empty]) => {
		for (const button of choice.children) button.setAttribute("aria-pressed", String(button.dataset.name === name));
		const columns = [
			{ head: "option", cell: (o) => h("code", { title: harmless(o.meaning || "") }, shown(o.name)) },
			{ head: "value", cell: (o) => h("code", shown(o.value)) },
			...(name === "others" ? [] : [
				{ head: "preset", class: "wide", cell: (o) => h("code.muted", shown(o.preset)) },
				{ head: "default", cell: (o) => h("code.muted", shown(o.default)) }]),
		];
		place.replaceChildren(rows.length ? h("div.scroll", table(columns, rows)) : h("p.empty", empty));
	};
	for (const sort of sorts) choice.append(h("button", { "data-name": sort[0], onclick: () => show(sort) }, sort[1] + " (" + sort[2].length + ")"));
	show(sorts[0][2].length ? sorts[0] : sorts[1]);
	box.append(choice, place);
	return box;
}
