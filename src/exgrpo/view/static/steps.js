// Generations as the loss saw them.
import { card, fromTemplate, h, s, table } from "./dom.js";
import { ask } from "./data.js";
import { mark } from "./timeline.js";
import { number, percent, plural, shown, signed } from "./text.js";
import { pager } from "./questions.js";

const SHOWN_AT_ONCE = 100;

export async function stepsPage(state) {
	const found = await ask(state.run + "/steps", state.query.start === undefined ? {} : { start: state.query.start });
	const page = h("div.page.stack");
	page.append(h("div.row.middle", h("h1", "Steps"), h("span.muted.tab", plural(found.total, "generation"))));
	if (!found.rows.length) {
		page.append(h("p.empty", "No generation was planned here. An exported folder holds what was stored, and no steps."));
		return page;
	}
	page.append(h("section.card.scroll", table([
		{ head: "generation", num: true, cell: (g) => (g.absent ? number(g.generation) : h("a", { href: state.link("step/" + g.generation) }, number(g.generation))) },
		{ head: "step", num: true, title: "optimizer steps done when it began", cell: (g) => number(g.step) },
		{ head: "groups", num: true, cell: (g) => number(g.questions) },
		{ head: "replayed", num: true, title: "groups that replay chose", cell: (g) => number(g.replayed) },
		{ head: "share", cell: (g) => bar(g.questions ? g.replayed / g.questions : 0) },
		{ head: "refilled", num: true, class: "wide", title: "retired questions that filled up the batch", cell: (g) => number(g.refilled) },
		{ head: "why nothing was replayed", class: "words", cell: (g) => (g.idle ? shown(g.idle) : "") },
	], found.rows, (g) => (g.absent ? null : state.link("step/" + g.generation)))));
	if (found.total > SHOWN_AT_ONCE) page.append(pager(found, (change) => state.go("steps", change), SHOWN_AT_ONCE));
	return page;
}

function bar(share) {
	return h("span.row.middle", s("svg", { width: 90, height: 8 }, s("rect.lane", { width: 90, height: 8, rx: 3 }), s("rect.tick", { width: 90 * share, height: 8, rx: 3 })), h("span.small.tab", percent(share)));
}

export async function stepPage(state, id) {
	const found = await ask(state.run + "/step/" + id);
	const page = h("div.page.stack");
	const to = (other, text) => h("a", { href: other === null ? null : state.link("step/" + other), class: other === null ? "faint" : null }, text);
	page.append(h("div.row.middle", h("h1.tab", "Generation " + number(found.generation)), h("span.muted.tab", "step " + number(found.step)),
		h("div.push.row", to(found.previous, "← previous"), to(found.next, "next →"))));
	state.step = found;
	const stored = found.groups.reduce((sum, g) => sum + g.stored.length, 0);
	page.append(h("section.card.figures", [[found.questions, "groups"], [found.replayed, "chosen by replay"], [stored, "stored members"], [found.refilled, "refilled"]].map(([n, text]) => h("div", h("b", number(n)), h("span", text)))));
	if (found.idle) page.append(h("p.note", "Nothing was replayed: ", shown(found.idle)));
	const box = card("Groups", fromTemplate("members-key"));
	const place = h("div.scroll", groups(state, found, null));
	box.append(place);
	page.append(box);
	ask(state.run + "/objective").then((objective) => {
		if (objective.why) box.append(h("p.faint.small", "No weights: ", shown(objective.why), "."));
		else place.replaceChildren(groups(state, found, objective));
	}).catch((error) => box.append(h("p.faint.small", "No weights: ", shown(error.message))));
	return page;
}

function groups(state, found, objective) {
	if (!found.groups.length) return h("p.empty", "No group of it was written down.");
	return table([
		{ head: "question", num: true, cell: (g) => h("a", { href: state.link("q/" + g.question) }, number(g.question)) },
		{ head: "text", class: "words wide", cell: (g) => h("a", { href: state.link("q/" + g.question), dir: "auto" }, shown(g.text)) },
		{ head: "right", num: true, cell: (g) => (g.scorable ? g.successes + "/" + g.scorable : "–") },
		{ head: "members", title: "mark, advantage, gradient weight", cell: (g) => members(g, objective) },
	], found.groups);
}

// The advantage of a kind of member, and its weight.
function members(group, objective) {
	const right = group.stored.filter((t) => t.correct).length, wrong = group.stored.length - right;
	const row = objective && objective.advantages[[group.scorable, group.successes, right, wrong].join(",")];
	const kinds = [
		...Array(group.successes).fill(["right", 0, null]), ...Array(group.scorable - group.successes).fill(["wrong", 1, null]),
		...Array(group.unscorable).fill(["unknown", null, null]), ...group.stored.map((t) => ["stored", t.correct ? 2 : 3, t]),
	];
	return h("div.members", kinds.map(([kind, place, stored]) => {
		const advantage = place === null ? 0 : row ? row[place] : null;
		const weight = stored ? (objective && stored.log_ratio !== null && advantage ? weightOf(objective, stored.log_ratio, advantage) : null) : 1;
		const title = (stored ? "stored, " + (stored.correct ? "right" : "wrong") + ", age " + plural(stored.age, "step") + ", by " + stored.moment + "\nmean log-ratio " + signed(stored.log_ratio) + " nats, ESS " + number(stored.ess) : "fresh, " + (kind === "unknown" ? "unscorable" : kind))
			+ "\nadvantage " + signed(advantage) + ", gradient weight " + number(weight);
		return h("span.member", { title }, s("svg", { width: 14, height: 14 }, mark(kind, 7, 7)), h("span", advantage === null ? "" : signed(advantage, 2)), h("span.faint", weight !== null && stored ? "×" + number(weight, 2) : ""));
	}));
}

function weightOf(objective, ratio, advantage) {
	const xs = objective.log_ratios, ys = advantage > 0 ? objective.up : objective.down;
	const at = (Math.max(xs[0], Math.min(xs[xs.length - 1], ratio)) - xs[0]) / (xs[1] - xs[0]);
	const i = Math.min(Math.floor(at), xs.length - 2);
	return ys[i] + (at - i) * (ys[i + 1] - ys[i]);
}
