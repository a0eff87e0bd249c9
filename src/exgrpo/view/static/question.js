// The page of one question: what it is, its life, and its trajectories.
import { card, chips, facts, fromTemplate, h, table } from "./dom.js";
import { ask } from "./data.js";
import { timeline } from "./timeline.js";
import { diffTexts, tokenScale, tokenText } from "./tokens.js";
import { stateTag } from "./questions.js";
import { number, percent, plural, shown, signed } from "./text.js";

export async function questionPage(state, id) {
	const found = await ask(state.run + "/question/" + id);
	const page = h("div.page.stack");
	page.append(h("div.row.middle", h("h1.tab", "Question " + number(found.id)), stateTag(found.state),
		found.type ? h("span.tag", shown(found.type)) : null, h("span.faint.mono", { title: "content hash of the question: the same in every run" }, found.key.slice(0, 12)),
		elsewhere(state, found), h("div.push.row", state.neighbours(found.id))));
	page.append(h("div.two", theText(found), nextPlan(found)));
	const chosen = pair(found.trajectories);
	const below = h("div.stack");
	const show = () => below.replaceChildren(sideBySide(state, found, chosen, show));
	const life = card("Its life", h("p.small.muted.tab", [plural(found.counts.groups, "fresh group"), percent(found.counts.completions ? found.counts.solved / found.counts.completions : null) + " right over all",
		plural(found.counts.ever, "trajectory", "trajectories") + " ever stored", plural(found.counts.replays, "replay"), found.counts.regained ? "solved again " + plural(found.counts.regained, "time") : ""].filter(Boolean).join(" · ")));
	const place = h("div");
	life.append(place, fromTemplate("timeline-key"));
	requestAnimationFrame(() => place.append(timeline(found, place.clientWidth || 900, (one) => { chosen[1] = one.id; show(); below.scrollIntoView({ block: "start", behavior: "smooth" }); })));
	page.append(life, trajectories(found, chosen, show, below), below);
	show();
	return page;
}

function elsewhere(state, found) {
	if (state.runs.length < 2) return null;
	const other = state.run === 0 ? 1 : 0;
	const place = h("span");
	ask(other + "/same/" + found.key).then((same) => place.append(h("a", { href: state.link("q/" + same.id, other) }, "the same in " + state.runs[other].name))).catch(() => place.append(h("span.faint.small", "not in " + state.runs[other].name)));
	return place;
}

export function theText(found) {
	const box = card("Question", null);
	for (const [role, text] of found.messages) box.append(role ? h("p.faint.small", shown(role)) : h("span"), h("div.text.box", { dir: "auto" }, shown(text)));
	if (!found.messages.length) box.append(h("p.empty", "No text of this question is kept."));
	box.append(h("p"), facts(found.columns.map(([name, value]) => [h("span", shown(name)), h("span.mono.text", shown(value))])));
	return box;
}

function nextPlan(found) {
	const plan = found.next;
	const box = card("What the next plan would do with it", null);
	if (plan.chance === null) box.append(h("p.empty", "It would not replay it: ", shown(plan.why), "."));
	else box.append(h("p", h("b.tab", percent(plan.chance, plan.chance < 0.1 ? 2 : 0)), " likely to be replayed next."));
	box.append(facts([
		[h("span", { title: "of its latest fresh group: right of K" }, "bucket"), plan.bucket ? plan.bucket + " (" + plan.tier + ")" : "not known"],
		[h("span", { title: "probability that a draw falls into this bucket, by the question sampler" }, "weight of the bucket"), percent(plan.weight, 1)],
		[h("span", { title: "questions that a plan replays on average" }, "questions replayed"), number(plan.wanted)],
		[h("span", { title: "the option question_choice" }, "sampler"), h("code", shown(plan.sampler))]]));
	return box;
}

// The two to look at first: the one replayed most, and the latest.
function pair(all) {
	if (!all.length) return [null, null];
	const most = all.reduce((best, one) => (one.replays.length > best.replays.length ? one : best), all[0]);
	const other = [...all].reverse().find((one) => one.id !== most.id);
	return [most.id, other ? other.id : null];
}

function trajectories(found, chosen, show, below) {
	const box = card("Trajectories", null);
	if (!found.trajectories.length) {
		box.append(h("p.empty", found.counts.groups ? "No completion of it was ever stored: none was admitted (options admission, store_truncated)." : "Nothing is stored."));
		return box;
	}
	box.firstChild.append(h("span.small.muted", found.more ? plural(found.more, "older one") + " not listed; choose A and B to compare" : "choose A and B to compare"));
	const pick = (i, letter) => ({ head: letter, title: "show as " + letter, cell: (t) => { const radio = h("input", { type: "radio", name: "pick" + letter, "aria-label": letter + ": trajectory " + t.id, onchange: () => { chosen[i] = t.id; show(); below.scrollIntoView({ block: "nearest", behavior: "smooth" }); } }); radio.checked = chosen[i] === t.id; return radio; } });
	const mean = (t) => { const known = t.replays.filter((r) => r.log_ratio !== null); return known.length ? known[known.length - 1].log_ratio : null; };
	box.append(h("div.scroll", table([
		pick(0, "A"), pick(1, "B"),
		{ head: "trajectory", cell: (t) => h("span.mono", { title: t.id + "\n" + (t.source ? "imported from " + t.source : t.model || "") }, "…" + t.id.slice(-5)) },
		{ head: "stored at", num: true, title: "optimizer step of the policy that wrote it", cell: (t) => number(t.step) },
		{ head: "right", cell: (t) => h("span", { class: t.correct ? "tag right" : "tag wrong" }, t.correct ? "right" : "wrong") },
		{ head: "rewards", cell: (t) => t.rewards.map((r) => h("div.small", { title: "weight " + r.weight }, shown(r.name), " ", h("b.tab", number(r.value)))) },
		{ head: "tokens", num: true, cell: (t) => number(t.length) },
		{ head: "entropy", num: true, class: "wide", title: "mean token entropy in nats, under the policy that wrote it", cell: (t) => number(t.entropy) },
		{ head: "advantage", num: true, class: "wide", title: "reward minus the mean of the group it came from", cell: (t) => signed(t.advantage) },
		{ head: "replays", num: true, cell: (t) => number(t.replays.length) },
		{ head: "last log-ratio", num: true, class: "wide", title: "token mean of log pi - log pi_behaviour at its latest replay, nats", cell: (t) => signed(mean(t)) },
		{ head: "last ESS", num: true, class: "wide", title: "of its tokens at its latest replay, in (0, 1]", cell: (t) => number(t.replays.length ? t.replays[t.replays.length - 1].ess : null) },
		{ head: "left", cell: (t) => (t.left ? h("span.small.muted", number(t.left.step) + ": ", shown(t.left.reason)) : h("span.tag.right", "stored")) },
	], found.trajectories)));
	return box;
}

function sideBySide(state, found, chosen, again) {
	const [a, b] = chosen.map((id) => found.trajectories.find((t) => t.id === id) || null);
	if (!a) return h("span");
	const mode = state.textMode || "diff";
	const modes = chips("what is shown", [["diff", "differences"], ["plain", "text"], ["tokens", "tokens"]], mode, (name) => { state.textMode = name; again(); });
	const box = card("Side by side", h("div.row.middle", modes, mode === "tokens" ? tokenScale() : null));
	const texts = mode === "diff" && b ? diffTexts(a.text, b.text) : [a, b].map((one) => one && (mode === "tokens" ? tokensOf(state, one) : h("div.text.box", { dir: "auto" }, shown(one.text ?? ""))));
	box.append(h("div.two", [a, b].map((one, i) => one && h("div", aboutOne(one, "AB"[i]), one.missing ? h("p.faint.small", shown(one.missing)) : null, texts[i],
		one.long && mode !== "tokens" ? h("p.faint.small", "Cut here; “tokens” shows the whole.") : null))));
	if (!b) box.append(h("p.faint.small", "No other to compare with."));
	return box;
}

function aboutOne(one, letter) {
	return h("p.small", h("b", letter), " step " + number(one.step) + ", " + plural(one.length, "token") + ", " + plural(one.replays.length, "replay") + ", ended by ", shown(one.finish_reason), ", ", one.correct ? "right" : "wrong");
}

function tokensOf(state, one) {
	const place = h("div", h("p.empty", "reading …"));
	ask(state.run + "/trajectory/" + one.id).then((found) => {
		place.replaceChildren(tokenText(found));
		const later = found.measurements.filter((m) => m.drift !== null || m.entropy !== null);
		if (later.length) place.append(h("p"), h("p.small.muted", "measured again later, in nats a token; drift: mean of (log pi - log pi_behaviour)²"), h("div.scroll", table(
			["step", "entropy", "nll", "drift"].map((name) => ({ head: name, num: true, cell: (m) => number(m[name]) })), later.slice(-12))));
	}).catch((error) => place.replaceChildren(h("p.error", shown(error.message))));
	return place;
}
