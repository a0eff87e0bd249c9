// A question's life over steps: its fresh groups, then a lane for each of its trajectories.
import { h, s } from "./dom.js";
import { harmless, number, plural, signed } from "./text.js";

const LEFT = 84, RIGHT = 14, MARK = 11, LANE = 18, TOP = 8;

// What happened, as marks; trajectories are chosen by clicking their lane.
export function timeline(question, width, choose) {
	const { groups, trajectories, k } = question;
	const steps = [...groups.map((g) => g.step), ...trajectories.flatMap((t) => [t.step, ...t.replays.map((r) => r.step), ...(t.left ? [t.left.step] : [])])];
	if (!steps.length) return h("p.empty", "Nothing has happened to it yet.");
	const low = Math.min(...steps), high = Math.max(...steps, low + 1);
	const inner = Math.max(width - LEFT - RIGHT, Math.min(groups.length * 9, 2600));
	const x = (step) => LEFT + ((step - low) / (high - low)) * (inner - MARK) + MARK / 2;
	const members = Math.max(k, ...groups.map((g) => g.scorable + g.unscorable), 1);
	const floor = TOP + members * MARK, lanes = floor + 26, height = lanes + trajectories.length * LANE + 22;
	const svg = s("svg", { width: inner + LEFT + RIGHT, height, role: "img", "aria-label": "timeline of the question" });
	retired(svg, question, x, x(high) + MARK / 2, height - 18);
	svg.append(s("text", { x: 0, y: TOP + 12 }, "fresh groups"), s("text", { x: 0, y: TOP + 26 }, "of " + k));
	for (const group of groups) svg.append(groupMarks(group, x(group.step), floor));
	svg.append(s("line.axis", { x1: LEFT, x2: LEFT + inner, y1: floor + 4, y2: floor + 4 }));
	trajectories.forEach((one, i) => svg.append(lane(one, lanes + i * LANE, x, high, choose)));
	const ticks = Math.max(2, Math.min(8, Math.floor(inner / 110)));
	for (let t = 0; t < ticks; t++) {
		const step = Math.round(low + (t * (high - low)) / (ticks - 1));
		const anchor = t === 0 ? "start" : t === ticks - 1 ? "end" : "middle";
		svg.append(s("text", { x: x(step), y: height - 4, "text-anchor": anchor }, (t === 0 ? "step " : "") + number(step)));
	}
	return h("div.scroll", svg);
}

function groupMarks(group, x, floor) {
	const right = group.successes, wrong = group.scorable - group.successes;
	const title = "step " + number(group.step) + ", generation " + number(group.generation) + ": " + right + " right, " + wrong + " wrong"
		+ (group.unscorable ? ", " + group.unscorable + " unscorable" : "") + (group.replayed ? "; replay had chosen the question" : "");
	const found = s("g", s("title", title), s("rect", { x: x - 5, y: TOP, width: 10, height: floor - TOP, fill: "transparent" }));
	for (let i = 0; i < right + wrong + group.unscorable; i++) {
		const y = floor - MARK / 2 - i * MARK;
		found.append(mark(i < right ? "right" : i < right + wrong ? "wrong" : "unknown", x, y));
	}
	if (group.replayed) found.append(s("path.stored", { d: "M" + x + " " + (floor + 6) + "l4 6h-8z" }));
	return found;
}

// Shape and colour say the same: a dot is right, a cross wrong, a ring could not be scored.
export function mark(kind, x, y) {
	if (kind === "right") return s("circle.right", { cx: x, cy: y, r: 3.6 });
	if (kind === "wrong") return s("path.wrong", { "stroke-width": 1.8, d: "M" + (x - 3) + " " + (y - 3) + "l6 6m0 -6l-6 6" });
	if (kind === "stored") return s("path.stored", { d: "M" + x + " " + (y - 5) + "l5 5l-5 5l-5 -5z" });
	return s("circle.unknown", { cx: x, cy: y, r: 3.2, "stroke-width": 1.4 });
}

function retired(svg, question, x, end, height) {
	let since = null;
	const band = (from, to) => svg.append(s("g", s("title", "retired: out of replay and the fresh stream"),
		s("rect.band", { x: x(from), y: TOP, width: Math.max(2, to - x(from)), height: height - TOP })));
	for (const event of question.retirements) {
		if (!event.back) since = event.step;
		else if (since !== null) { band(since, x(event.step)); since = null; }
	}
	if (since !== null) band(since, end);
	for (const event of question.retirements) {
		svg.append(s("g", s("title", (event.back ? "came back" : "retired") + " at step " + number(event.step)),
			s("line.guide", { x1: x(event.step), x2: x(event.step), y1: TOP, y2: height })));
	}
}

function lane(one, y, x, high, choose) {
	const end = one.left ? one.left.step : high;
	const label = "…" + one.id.slice(-5);
	const said = "trajectory " + one.id + ": stored at step " + number(one.step) + ", " + plural(one.replays.length, "replay")
		+ (one.left ? ", left at step " + number(one.left.step) + " (" + one.left.reason + ")" : ", stored now");
	const group = s("g", { role: "button", "aria-label": harmless(said), class: "choose", onclick: () => choose(one) },
		s("rect", { x: 0, y, width: x(high) + 10, height: LANE - 1, fill: "transparent" }),
		s("text", { x: 0, y: y + 12, class: "tab" }, label),
		s("rect", { class: one.left ? "lane" : "lane on", x: x(one.step), y: y + 5, width: Math.max(3, x(end) - x(one.step)), height: 8, rx: 3 }, s("title", harmless(said))),
		mark(one.correct ? "right" : "wrong", x(one.step), y + 9));
	for (const replay of one.replays) {
		group.append(s("g", s("title", "replayed at step " + number(replay.step) + ", age " + plural(replay.age, "step") + "\nmean log-ratio "
			+ signed(replay.log_ratio) + " nats, ESS " + number(replay.ess)), s("rect.tick", { x: x(replay.step) - 1.5, y: y + 3, width: 3, height: 12, rx: 1 })));
	}
	if (one.left) group.append(s("path.wrong", { fill: "none", "stroke-width": 1.4, d: "M" + x(end) + " " + (y + 4) + "v10" }, s("title", harmless("left at step " + number(one.left.step) + ": " + one.left.reason))));
	return group;
}
