// Elements from plain values. Text becomes text nodes, always: nothing here, or anywhere else, parses HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
	for (const [name, value] of Object.entries(attributes || {})) {
		if (value === null || value === undefined || value === false) continue;
		if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
		else if (name === "href" && !String(value).startsWith("#")) throw new Error("only places of this page are linked");
		else node.setAttribute(name, value === true ? "" : String(value));
	}
	append(node, children);
	return node;
}

export function append(node, children) {
	for (const child of children.flat(Infinity)) {
		if (child === null || child === undefined || child === false) continue;
		node.append(child instanceof Node ? child : document.createTextNode(String(child)));
	}
}

// "p.empty" is a tag with classes; attributes may follow it, then children.
function make(create, spec, rest) {
	const [tag, ...classes] = spec.split(".");
	const first = rest[0];
	const given = first !== null && typeof first === "object" && !(first instanceof Node) && !Array.isArray(first);
	const node = create(tag);
	if (classes.length) node.setAttribute("class", classes.join(" "));
	if (tag === "button" && !(given && first.type)) node.type = "button";
	return fill(node, given ? first : null, given ? rest.slice(1) : rest);
}

export function h(spec, ...rest) {
	return make((tag) => document.createElement(tag), spec, rest);
}

export function s(spec, ...rest) {
	return make((tag) => document.createElementNS(SVG, tag), spec, rest);
}

// A copy of a part of the page that only waits to be shown.
export function fromTemplate(id) {
	return document.getElementById(id).content.cloneNode(true);
}

export function color(name) {
	return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// A table: columns are {head, cell(row), num, title}; a list that keys go through opens the place of a row.
export function table(columns, rows, open) {
	const head = columns.map((c) => h("th", { class: [c.num ? "num" : "", c.class || ""].join(" ").trim() || null, title: c.title }, c.head));
	const body = rows.map((row) =>
		h("tr", { "data-open": open && open(row) }, columns.map((c) => h("td", { class: [c.num ? "num" : "", c.class || ""].join(" ").trim() || null }, c.cell(row)))));
	return h("table", { id: open && "list" }, h("thead", h("tr", head)), h("tbody", body));
}

export function chips(label, pairs, current, choose) {
	return h("div.chips", { role: "group", "aria-label": label }, pairs.map(([name, text, title]) => h("button", { title, "aria-pressed": String(name === current), onclick: () => choose(name) }, text)));
}

export function facts(pairs) {
	return h("dl.facts", pairs.map(([name, value]) => [h("dt", name), h("dd", value)]));
}

export function card(title, ...children) {
	return h("section.card", h("header", h("h2", title)), children);
}
