// Questions by accuracy over steps: a map whose darkness is how many there are.
import { card, color, h } from "./dom.js";
import { number, percent } from "./text.js";

const MARGIN = 52, FOOT = 20, ROW = 17, GAP = 5;

export function heatCard(heat, title) {
	const box = card(title || "Questions by accuracy", null);
	const total = heat.counts.length ? heat.counts.reduce((sum, row) => sum + row[row.length - 1], 0) : 0;
	if (!total) {
		box.append(h("p.empty", "No fresh group has been scored yet, so no question has an accuracy."));
		return box;
	}
	box.firstChild.append(h("span.small.faint", { title: "right of K in the latest fresh group of each question seen; retired ones on top" },
		"latest fresh group of each question, over steps"));
	const line = h("p.small.muted.tab", summary(heat));
	const canvas = h("canvas.heat", { role: "img", "aria-label": "questions by accuracy over steps" });
	box.append(canvas, line);
	const again = () => { if (canvas.isConnected) drawHeat(canvas, heat); };
	requestAnimationFrame(again);
	const watcher = new ResizeObserver(() => (canvas.isConnected ? again() : watcher.disconnect()));
	watcher.observe(box);
	canvas.addEventListener("pointermove", (event) => { line.textContent = under(canvas, heat, event) || summary(heat); });
	canvas.addEventListener("pointerleave", () => { line.textContent = summary(heat); });
	return box;
}

function summary(heat) {
	const last = heat.steps.length - 1;
	return "step " + number(heat.steps[last]) + ": " + heat.rows.map((name, i) => [name, heat.counts[i][last]]).filter(([, n]) => n)
		.map(([name, n]) => number(n) + " " + (name === "retired" ? "retired" : "at " + name)).join(", ");
}

function topOf(heat, i) {
	const fromTop = heat.rows.length - 1 - i;
	return fromTop * ROW + (fromTop > 0 ? GAP : 0);
}

function drawHeat(canvas, heat) {
	const width = canvas.clientWidth || 600, height = heat.rows.length * ROW + GAP + FOOT, ratio = devicePixelRatio || 1;
	canvas.width = width * ratio;
	canvas.height = height * ratio;
	const ctx = canvas.getContext("2d");
	ctx.scale(ratio, ratio);
	ctx.font = "11px system-ui, sans-serif";
	ctx.textBaseline = "middle";
	const inner = width - MARGIN, n = heat.steps.length, rgb = color("--heat"), last = heat.rows.length - 1;
	const most = Math.max(...heat.counts.slice(0, last).flat(), 1), all = Math.max(...heat.counts[last], 1);
	const edge = (j) => Math.round((MARGIN + (j * inner) / n) * ratio) / ratio;
	for (const [i, row] of heat.counts.entries()) {
		ctx.fillStyle = color("--soft");
		ctx.textAlign = "right";
		ctx.fillText(heat.rows[i], MARGIN - 8, topOf(heat, i) + ROW / 2);
		for (let j = 0; j < n; j++) {
			ctx.fillStyle = row[j] ? "rgba(" + rgb + "," + (0.06 + 0.94 * (i === last ? row[j] / all : (row[j] / most) ** 0.4)).toFixed(3) + ")" : color("--hover");
			ctx.fillRect(edge(j), topOf(heat, i), edge(j + 1) - edge(j), ROW - 1);
		}
	}
	ctx.fillStyle = color("--soft");
	const ticks = Math.max(2, Math.min(8, Math.floor(inner / 90)));
	for (let t = 0; t < ticks; t++) {
		const j = Math.round((t * (n - 1)) / (ticks - 1));
		ctx.textAlign = t === 0 ? "left" : t === ticks - 1 ? "right" : "center";
		ctx.fillText(number(heat.steps[j]), MARGIN + ((j + 0.5) * inner) / n, height - FOOT / 2);
	}
}

function under(canvas, heat, event) {
	const box = canvas.getBoundingClientRect();
	const j = Math.floor(((event.clientX - box.left - MARGIN) / (box.width - MARGIN)) * heat.steps.length);
	const y = ((event.clientY - box.top) * (heat.rows.length * ROW + GAP + FOOT)) / box.height;
	const i = heat.rows.findIndex((_, k) => y >= topOf(heat, k) && y < topOf(heat, k) + ROW);
	if (i < 0 || j < 0 || j >= heat.steps.length) return null;
	const total = heat.counts.reduce((sum, row) => sum + row[j], 0);
	return "step " + number(heat.steps[j]) + ", " + heat.rows[i] + ": " + number(heat.counts[i][j]) + " of " + number(total) + " questions (" + percent(total ? heat.counts[i][j] / total : 0, 1) + ")";
}
