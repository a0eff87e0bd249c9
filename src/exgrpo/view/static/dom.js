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

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// A table: columns are {head, cell(row), num, title}.
export function table(columns, rows, attributes) {
  const head = columns.map((c) => h("th", { class: [c.num ? "num" : "", c.class || ""].join(" ").trim() || null, title: c.title }, c.head));
  const body = rows.map((row) =>
    h("tr", null, columns.map((c) => h("td", { class: [c.num ? "num" : "", c.class || ""].join(" ").trim() || null }, c.cell(row)))));
  return h("table", attributes, h("thead", null, h("tr", null, head)), h("tbody", null, body));
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.map(([name, value]) => [h("dt", null, name), h("dd", null, value)]));
}

export function card(title, ...children) {
  return h("section", { class: "card" }, h("header", null, h("h2", null, title)), children);
}
