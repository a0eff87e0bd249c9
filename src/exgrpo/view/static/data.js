// Where answers come from: the server that gave this page, or what lies in the page itself.

const element = document.getElementById("data");
const inside = element ? JSON.parse(element.textContent) : null;

export const isFile = inside !== null;
export const about = inside ? inside.about : null;

export async function ask(path, query = {}) {
	if (inside) return answerInside(path, query);
	const text = new URLSearchParams(query).toString();
	const answer = await fetch("api/" + path + (text ? "?" + text : ""), { credentials: "omit" });
	let value;
	try {
		value = await answer.json();
	} catch {
		throw new Error(answer.ok ? "no readable answer" : "the server refused: " + answer.status);
	}
	if (!answer.ok) throw new Error(value.error || "the server refused: " + answer.status);
	return value;
}

function answerInside(path, query) {
	const [run, kind] = path.split("/");
	if (kind === "questions") return page(inside.questions[run], query);
	if (kind === "version") return { version: "file", growing: false };
	if (kind === "steps") {
		const all = inside.answers[run + "/steps"];
		const start = query.start === undefined ? Math.max(0, all.rows.length - 100) : Math.min(Number(query.start), all.rows.length);
		return { total: all.rows.length, start, rows: all.rows.slice(start, start + 100).map((g) => ({ ...g, absent: !(run + "/step/" + g.generation in inside.answers) })) };
	}
	const found = inside.answers[path];
	if (found === undefined) throw new Error("this file lacks " + path.split("/").slice(1).join(" ") + ". " + inside.about.how);
	return found;
}

const KEYS = {
	number: (q) => q.id,
	accuracy: (q) => (q.scorable ? q.successes / q.scorable : 2),
	solved: (q) => (q.completions ? q.solved / q.completions : 2),
	observed: (q) => q.observed_at,
};

// The same list as the server makes, of the questions that lie in the page.
function page(all, { search = "", only = "all", sort = "number", down = "", start = 0, count = 50 }) {
	const words = search.trim().toLowerCase();
	const matches = (q) => !words || "q:" + q.id === words || [q.text, q.gold, q.key, q.whole].some((t) => t && t.toLowerCase().includes(words));
	const rows = all.rows.filter((q) => q.filters.includes(only) && matches(q));
	const key = KEYS[sort] || ((q) => q[sort]);
	rows.sort((a, b) => (down === "1" ? key(b) - key(a) : key(a) - key(b)) || a.id - b.id);
	const first = Number(start);
	return {
		total: rows.length, start: first, rows: rows.slice(first, first + Number(count)), sorts: all.sorts, empty: rows.length ? "" : "No question passes this filter.",
		filters: all.filters.map((f) => ({ ...f, count: all.rows.filter((q) => q.filters.includes(f.name)).length })),
	};
}
