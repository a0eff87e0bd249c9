// An evaluation: results of its models, the questions that were asked, and the completions of each.
import { card, chips, facts, h, table } from "./dom.js";
import { ask } from "./data.js";
import { questionsPage, stateTag } from "./questions.js";
import { theText } from "./question.js";
import { diffTexts } from "./tokens.js";
import { number, percent, plural, shown, signed } from "./text.js";

const chosenOf = (state) => (state.overlay ? state.runs.map((_, i) => i) : [state.run]);

function rate(value) {
	return value ? [h("b", percent(value.mean, 1)), h("span.small.muted", " " + (100 * value.low).toFixed(1) + "–" + (100 * value.high).toFixed(1))] : "–";
}

export async function resultsPage(state) {
	const found = await Promise.all(chosenOf(state).map((i) => ask(i + "/overview")));
	const page = h("div.page.stack", h("div.row.middle", h("h1", found.length > 1 ? "Evaluation of " + plural(found.length, "model") : shown(found[0].name)),
		h("span.muted.small", found.length > 1 ? null : shown(found[0].path))));
	for (const benchmark of new Set(found.flatMap((one) => one.results.map((row) => row.benchmark)))) page.append(resultsOf(benchmark, found));
	if (!found.some((one) => one.results.length)) page.append(h("p.empty", "Nothing is answered yet: completions appear here as they are kept."));
	const before = (i, name) => found.length === 1 || found.slice(0, i).some((other) => other.name === name); // each pair once
	const differences = found.flatMap((one, i) => one.differences.filter(([name]) => before(i, name)));
	if (differences.length) page.append(card("Told apart?", differences.map(([, text]) => h("p", shown(text)))));
	for (const one of found) page.append(card(found.length > 1 ? ["Settings: ", shown(one.name)] : "Settings", facts([...one.facts, ...one.benchmarks].map(([name, value]) => [shown(name), h("span.mono", shown(value))]))));
	return page;
}

function resultsOf(benchmark, found) {
	const rows = found.flatMap((one) => one.results.filter((row) => row.benchmark === benchmark).map((row) => ({ ...row, model: one.name })));
	const count = (head, title, cell, wide) => ({ head, title, cell, num: true, class: wide ? "wide" : "" });
	return card(shown(benchmark), h("div.scroll", table([
		{ head: "model", cell: (r) => shown(r.model) },
		count("Pass@1", "mean over questions of the share right, in percent, with its 95 % interval", (r) => rate(r.avg)),
		count("Pass@k", "chance that one of k completions is right", (r) => r.pass_at_k.slice(-1).map(([k, value]) => [h("span.faint", k + ": "), rate(value)])),
		count("questions", "answered, of those that are asked", (r) => number(r.questions) + (r.asked > r.questions ? " of " + number(r.asked) : "")),
		count("completions", "kept", (r) => number(r.samples), true), count("unscorable", "the verifier cannot read the gold answer", (r) => number(r.unscorable), true),
		count("cut", "ended at the limit of tokens", (r) => percent(r.cut_share, 1)), count("tokens", "mean of a completion", (r) => number(r.mean_tokens)),
		count("different", "different right texts of a question, mean", (r) => number(r.distinct_right), true),
		{ head: "disagree", class: "wide", title: "completions that another verifier takes otherwise than the one that decides", cell: (r) => r.disagreements.map(([name, n]) => h("div.small", shown(name), " ", h("b.tab", number(n)))) },
	], rows)));
}

export const answeredQuestions = (state) => questionsPage(state, null, answeredRows);

function answeredRows(found, state, head) {
	const count = (name, cell, wide) => ({ head: head(name), num: true, class: wide ? "wide" : "", cell });
	const others = found.rows.some((q) => q.others.length);
	return table([
		count("number", (q) => q.id),
		{ head: "question", class: "words", cell: (q) => h("a", { href: state.link("q/" + q.id), dir: "auto" }, shown(q.text || "(no text)")) },
		{ head: "benchmark", class: "wide", cell: (q) => shown(q.type) }, { head: "gold", class: "wide", cell: (q) => h("span.mono", shown(q.gold)) },
		count("accuracy", (q) => [q.scorable ? q.successes + "/" + q.scorable : "–", h("div", shareBar(q))]),
		count("pass_k", (q) => (q.k ? [h("span.faint", q.k + ": "), percent(q.pass_k)] : "–"), true),
		...(others ? [{ head: "others", title: "right completions of the other models", cell: (q) => q.others.map(([name, right, of]) => h("div.small", shown(name), " ", h("b.tab", right + "/" + of))) },
			count("difference", (q) => (q.difference === null ? "–" : signed(100 * q.difference, 3)), true)] : []),
		{ head: "state", class: "wide", cell: (q) => stateTag(q.state) },
		count("tokens", (q) => number(q.tokens)), count("cut", (q) => number(q.cut), true), count("disagree", (q) => number(q.disagree), true), count("distinct", (q) => number(q.distinct), true),
	], found.rows, (q) => state.link("q/" + q.id));
}

function shareBar(q) {
	return h("progress", { max: q.scorable || 1, value: q.successes, "aria-hidden": true });
}

export async function answeredPage(state, id) {
	const found = await ask(state.run + "/question/" + id);
	const page = h("div.page.stack", h("div.row.middle", h("h1.tab", "Question " + number(found.id)), stateTag(found.state), h("span.tag", shown(found.type)),
		h("div.push.row", state.neighbours(found.id))), theText(found));
	const all = [...found.trajectories, ...(await Promise.all(state.runs.map((_, i) => (i === state.run ? [] : elsewhereAnswered(i, found.key))))).flat()];
	const chosen = [all.find((one) => one.verdict === "right") || all[0], all.find((one) => one.verdict === "wrong") || all[1]].map((one) => one || null);
	if (chosen[0] === chosen[1]) chosen[1] = all.find((one) => one !== chosen[0]) || null;
	const below = h("div");
	const show = () => below.replaceChildren(besides(chosen, state, show));
	page.append(completions(all, chosen, show, below), below);
	show();
	return page;
}

// What another model wrote, where it was asked the same.
async function elsewhereAnswered(i, key) {
	try {
		return (await ask(i + "/question/" + (await ask(i + "/same/" + key)).id)).trajectories.map((one) => ({ ...one, id: i + "." + one.id }));
	} catch {
		return [];
	}
}

function completions(all, chosen, show, below) {
	const pick = (i, letter) => ({ head: letter, title: "show as " + letter, cell: (one) => { const radio = h("input", { type: "radio", name: "pick" + letter, "aria-label": letter + ": sample " + one.sample, onchange: () => { chosen[i] = one; show(); below.scrollIntoView({ block: "nearest", behavior: "smooth" }); } }); radio.checked = chosen[i] === one; return radio; } });
	const several = new Set(all.map((one) => one.model)).size > 1;
	return card("Completions", h("div.scroll", table([
		pick(0, "A"), pick(1, "B"), ...(several ? [{ head: "model", cell: (one) => shown(one.model) }] : []),
		{ head: "sample", num: true, cell: (one) => number(one.sample) },
		{ head: "right", title: "by the verifier that decides, the first", cell: (one) => h("span", { class: "tag " + one.verdict }, one.verdict) },
		{ head: "rewards", class: "wide", cell: (one) => one.rewards.map(([name, value]) => h("div.small", shown(name), " ", h("b.tab", number(value)))) },
		{ head: "tokens", num: true, cell: (one) => number(one.tokens) }, { head: "ended by", cell: (one) => shown(one.finish) },
		{ head: "ends with", class: "words wide", cell: (one) => h("span.small.muted", { dir: "auto" }, shown(one.text.trimEnd().slice(-160))) },
	], all)));
}

function besides(chosen, state, again) {
	if (!chosen[0]) return h("p.empty", "No completion is kept.");
	const mode = state.textMode || "plain";
	const modes = chips("what is shown", [["plain", "text"], ["diff", "differences"]], mode, (name) => { state.textMode = name; again(); });
	const texts = mode === "diff" && chosen[1] ? diffTexts(chosen[0].text, chosen[1].text) : chosen.map((one) => one && h("div.text.box", { dir: "auto" }, shown(one.text)));
	return card("Side by side", modes, h("div.two", chosen.map((one, i) => one && h("div", h("p.small", h("b", "AB"[i]), " ", shown(one.model), ", sample " + number(one.sample) + ", " + one.verdict + ", " + (one.tokens === null ? "tokens not known" : plural(one.tokens, "token"))), texts[i],
		one.long ? h("p.faint.small", "Cut here; the whole is in the file, table completion.") : null))));
}
