// Line charts, drawn by uPlot, with their marks on the time axis; and small curves of a single question.
import { card, color, h, s } from "./dom.js";
import { compact, harmless, number, plural } from "./text.js";

const HEIGHT = 190;
const COLORS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6"];

// Lines of several runs as one list: the colour tells the run where there are two, else the line.
function linesOf(charts, names) {
	const several = charts.length > 1;
	return charts.flatMap((chart, run) => chart.lines.map((line, i) => ({
		...line, run, tone: several ? run : i, dash: several && i > 0 ? [[5, 4], [2, 3], [8, 3, 2, 3]][(i - 1) % 3] : null,
		text: several ? line.label + ", " + names[run] : line.label,
	})));
}

// From steps to generated tokens, by the states of a run.
export function tokensAt(clock, step) {
	if (!clock || !clock.steps.length) return step;
	const { steps, tokens } = clock;
	let i = steps.findIndex((one) => one >= step);
	if (i < 0) i = steps.length - 1;
	if (i === 0 || steps[i] === steps[i - 1]) return tokens[i];
	const part = Math.min(1, (step - steps[i - 1]) / (steps[i] - steps[i - 1]));
	return tokens[i - 1] + part * (tokens[i] - tokens[i - 1]);
}

export function chartCard(charts, runs, axis) {
	const chart = charts.find((one) => one.lines.length) || charts[0];
	const lines = linesOf(charts, runs.map((run) => run.name));
	const box = card(chart.title, null);
	if (chart.unit) box.firstChild.append(h("span.small.faint", chart.unit));
	const legend = h("div.legend");
	const values = lines.map((line) => {
		const value = h("b", "");
		const tip = [line.meaning, line.unit && "Unit: " + line.unit + ".", line.name].filter(Boolean).join("\n");
		legend.append(h("span", { title: harmless(tip) }, h("i", { class: "k" + (line.tone % 6 + 1) + (line.dash ? " dash" : "") }), line.text, value));
		return value;
	});
	const place = h("div.chart", { role: "img", "aria-label": chart.title });
	box.append(place, legend);
	requestAnimationFrame(() => draw(place, chart, lines, values, runs, axis));
	return box;
}

function draw(place, chart, lines, values, runs, axis) {
	if (!place.isConnected) return;
	const at = (line) => (axis === "tokens" ? line.x.map((x) => tokensAt(runs[line.run].clock, x)) : line.x);
	const data = uPlot.join(lines.map((line) => [at(line), line.y]));
	const right = lines.some((line) => line.scale === "right");
	const ink = color("--soft");
	const grid = { stroke: color("--line"), width: 1 };
	const label = (u, ticks) => ticks.map((v) => (v === null ? "" : compact(v)));
	const axes = [
		{ stroke: ink, grid, ticks: grid, values: label, font: "11px system-ui", size: 28 },
		{ stroke: ink, grid, ticks: grid, values: label, font: "11px system-ui", size: 46 },
	];
	if (right) axes.push({ scale: "right", side: 1, stroke: ink, grid: { show: false }, values: label, font: "11px system-ui", size: 46 });
	const latest = (i) => { for (let j = data[0].length - 1; j >= 0; j--) if (data[i + 1][j] != null) return data[i + 1][j]; return null; };
	const write = (index) => lines.forEach((line, i) => {
		const value = index === null || data[i + 1][index] == null ? (index === null ? latest(i) : null) : data[i + 1][index];
		values[i].textContent = value === null ? "" : " " + number(value);
	});
	const plot = new uPlot({
		width: place.clientWidth || 360, height: HEIGHT, legend: { show: false }, axes, padding: [8, right ? 4 : 10, 0, 0],
		cursor: { sync: { key: "run", setSeries: false }, y: false, points: { size: 6 } },
		scales: { x: { time: false }, y: { range: (u, low, high) => rangeOf(chart.bounds, low, high) }, right: { range: (u, low, high) => rangeOf(null, low, high) } },
		series: [{}, ...lines.map((line) => ({
			scale: line.scale || "y", stroke: color(COLORS[line.tone % 6]), width: 1.6, dash: line.dash, spanGaps: true,
			points: { show: line.x.length < 2 }, paths: line.steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
		}))],
		hooks: { setCursor: [(u) => write(u.cursor.idx ?? null)], draw: [(u) => drawMarks(u, runs, axis)] },
	}, data, place);
	write(null);
	const watcher = new ResizeObserver(() => {
		if (!place.isConnected) { watcher.disconnect(); plot.destroy(); return; }
		if (place.clientWidth && place.clientWidth !== plot.width) plot.setSize({ width: place.clientWidth, height: HEIGHT });
	});
	watcher.observe(place);
}

function rangeOf(bounds, low, high) {
	if (bounds) return [Math.min(bounds[0], low ?? bounds[0]), Math.max(bounds[1], high ?? bounds[1])];
	if (low === null || high === null) return [0, 1];
	const room = (high - low || Math.abs(high) || 1) * 0.08;
	return [low >= 0 && low < (high - low) ? 0 : low - room, high + room];
}

// Alarms as lines, idle stretches as a bar at the foot of the chart.
function drawMarks(u, runs, axis) {
	const { ctx, bbox } = u;
	const x = (run, step) => u.valToPos(axis === "tokens" ? tokensAt(run.clock, step) : step, "x", true);
	const clip = (value) => Math.max(bbox.left, Math.min(bbox.left + bbox.width, value));
	ctx.save();
	for (const [i, run] of runs.entries()) {
		for (const mark of run.marks || []) {
			const from = clip(x(run, mark.step)), to = clip(x(run, mark.to));
			if (mark.kind === "alarm") {
				ctx.fillStyle = color("--warn");
				ctx.fillRect(from, bbox.top, Math.max(1, devicePixelRatio), bbox.height);
			} else {
				ctx.fillStyle = color("--faint");
				ctx.globalAlpha = 0.55;
				const thick = 3 * devicePixelRatio;
				ctx.fillRect(from, bbox.top + bbox.height - thick * (i + 1), Math.max(to - from, 2 * devicePixelRatio), thick);
				ctx.globalAlpha = 1;
			}
		}
	}
	ctx.restore();
}

// A small curve of accuracy of a question.
export function spark(points, width = 110, height = 24) {
	if (!points.length) return h("span.faint", "–");
	const x = (i) => 3 + (points.length > 1 ? (i * (width - 6)) / (points.length - 1) : (width - 6) / 2);
	const y = (share) => height - 3 - share * (height - 6);
	const path = points.map(([, share], i) => (i ? "L" : "M") + x(i).toFixed(1) + " " + y(share).toFixed(1)).join("");
	const last = points.length - 1;
	return s("svg.spark", { width, height, role: "img", "aria-label": "accuracy of " + plural(points.length, "group") },
		s("title", "accuracy of its latest " + plural(points.length, "fresh group") + ", step " + points[0][0] + " to " + points[last][0]),
		s("line", { x1: 3, x2: width - 3, y1: y(0), y2: y(0) }), s("path", { d: path }), s("circle", { cx: x(last), cy: y(points[last][1]), r: 2 }));
}
