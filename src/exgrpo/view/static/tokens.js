// A completion: its text, its tokens by how sure the policy was, and two of them side by side.
import { color, h } from "./dom.js";
import { harmless, number, shown } from "./text.js";

const SURE = -0.02, LOST = -5; // log-probs at which a token has no colour, and the strongest

// Every token on a ground whose strength is how unlikely the policy that wrote it thought it.
export function tokenText(found) {
	if (!found.pieces) return h("p.empty", "Its tokens were pruned from the log.");
	const rgb = color("--wrong");
	const parts = found.pieces.map((piece, i) => {
		const logp = found.logps[i];
		const strength = logp === null || logp > SURE ? 0 : Math.min(1, logp / LOST);
		const span = h("span", { title: harmless(JSON.stringify(piece)) + "\nlog-prob " + number(logp) + " nats (p = " + number(Math.exp(logp)) + ")" }, shown(piece));
		if (strength) span.style.backgroundColor = "color-mix(in srgb, " + rgb + " " + Math.round(8 + 72 * strength) + "%, transparent)";
		return span;
	});
	return h("div.tokens.text.box", { dir: "ltr" }, parts);
}

export function tokenScale() {
	const steps = [-0.01, -0.5, -1, -2, -5].map((logp) => {
		const span = h("span.small", number(Math.exp(logp), 1));
		const strength = logp > SURE ? 0 : Math.min(1, logp / LOST);
		if (strength) span.style.backgroundColor = "color-mix(in srgb, " + color("--wrong") + " " + Math.round(8 + 72 * strength) + "%, transparent)";
		span.style.padding = "0 6px";
		return span;
	});
	return h("span.small.muted", { title: "under the policy that wrote it. The log keeps the mean log-ratio of a replay, not one for each token." },
		"probability when it was written: ", steps);
}

// Two texts, each with what the other lacks marked; the library says what differs.
export function diffTexts(left, right) {
	const parts = left === null || right === null ? null : Diff.diffWordsWithSpace(left, right, { timeout: 800 });
	if (!parts) return [h("div.text.box", shown(left ?? "")), h("div.text.box", shown(right ?? ""))];
	const side = (skip, tag) => h("div.text.box", { dir: "auto" }, parts.filter((part) => !part[skip]).map((part) =>
		(part.added || part.removed ? h(tag, null, shown(part.value)) : shown(part.value))));
	return [side("added", "del"), side("removed", "ins")];
}
