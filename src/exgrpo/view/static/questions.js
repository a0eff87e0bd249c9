// The list of questions: filters, search, order, pages.
import { h, table } from "./dom.js";
import { ask, isFile } from "./data.js";
import { spark } from "./charts.js";
import { number, plural, shown } from "./text.js";

const NAMES = { all: "all", solved: "solved", hopeless: "hopeless", forgotten: "forgotten", relearned: "solved again", retired: "retired", often: "replayed often", never_stored: "never stored", stored: "stored", disagree: "verifiers disagree" };
const STATES = {
  retired: ["tag", "out of replay and the fresh stream"], unscored: ["tag", "no fresh completion of it could be scored yet"],
  forgotten: ["tag wrong", "was solved before; no success in its latest fresh group"], unsolved: ["tag wrong", "no success so far"],
  hard: ["tag warn", "accuracy in (0, 25] %"], medium: ["tag", "accuracy in (25, 75) %"], easy: ["tag right", "accuracy from 75 % on"],
};
const PAGE_SIZE = 50;

export function stateTag(name) {
  const [look, meaning] = STATES[name] || ["tag", ""];
  return h("span", { class: look, title: meaning }, name);
}

const SORTED = {
  number: ["#", "number of the question in the log"], accuracy: ["latest", "right of the scorable completions of its latest fresh group"],
  solved: ["ever", "share of right completions over all its fresh groups"], groups: ["groups", "fresh groups"],
  stored: ["stored", "trajectories of it that are stored now"], replays: ["replays", "times one of its trajectories was replayed"],
  uses: ["most", "replays of its most replayed trajectory"], regained: ["again", "times its success came back after a group without any"],
  observed: ["seen at", "optimizer step of its latest fresh group"],
};

export async function questionsPage(state) {
  const query = { only: "all", sort: "number", down: "", search: "", start: "0", ...state.query };
  const found = await ask(state.run + "/questions", { ...query, count: PAGE_SIZE });
  state.listed({ ids: found.rows.map((q) => q.id), query, total: found.total, start: found.start });
  const go = (change) => state.go("questions", { ...query, start: "0", ...change });
  const page = h("div", { class: "page stack" });
  const search = h("input", { type: "search", id: "search", placeholder: "search text, answer, key or q:12", "aria-label": "search questions", value: query.search });
  let wait = null;
  search.addEventListener("input", () => { clearTimeout(wait); wait = setTimeout(() => go({ search: search.value }), 250); });
  page.append(h("div", { class: "row middle" }, h("h1", null, "Questions"), h("span", { class: "muted tab" }, plural(found.total, "question")), h("div", { class: "push" }, search)));
  page.append(h("div", { class: "chips", role: "group", "aria-label": "filter" }, found.filters.map((f) =>
    h("button", { type: "button", title: f.meaning, "aria-pressed": String(f.name === query.only), onclick: () => go({ only: f.name }) }, NAMES[f.name] || f.name, h("span", { class: "faint tab" }, " " + number(f.count))))));
  page.append(found.rows.length ? h("section", { class: "card scroll" }, list(found, state, query, go)) : nothing(found, query));
  if (found.total > PAGE_SIZE) page.append(pager(found, go));
  return page;
}

function nothing(found, query) {
  const all = found.filters.find((f) => f.name === "all");
  let why = "No question passes this filter" + (query.search ? " and holds “" + query.search + "”." : ".");
  if (all && all.count === 0) why = "No question was seen yet: they appear with the first fresh group that is scored.";
  else if (query.only === "disagree" && !found.audited) why = "No audit lies beside the log. Run `exgrpo rewards audit RUN --json > RUN/audit.json`, then look here again.";
  else if (query.only === "disagree") why = "The audit beside the log found no question whose verifiers disagree.";
  else if (isFile && query.search) why += " This file holds a part of the run; the whole is in its log.";
  return h("p", { class: "empty" }, shown(why));
}

function list(found, state, query, go) {
  const head = (name) => {
    const [text, meaning] = SORTED[name];
    const on = query.sort === name, down = query.down === "1";
    const first = ["number", "accuracy", "solved"].includes(name) ? "" : "1";
    return h("button", { type: "button", class: on ? "on" : null, title: "sort by " + meaning, onclick: () => go({ sort: name, down: on ? (down ? "" : "1") : first }) }, text + (on ? (down ? " ↓" : " ↑") : ""));
  };
  const count = (name, value, wide) => ({ head: head(name), num: true, class: wide ? "wide" : "", cell: value });
  const made = table([
    count("number", (q) => q.id),
    { head: "question", class: "words", cell: (q) => h("a", { href: state.link("q/" + q.id), dir: "auto" }, shown(q.text || "(no text)")) },
    { head: "gold", class: "wide", cell: (q) => h("span", { class: "mono" }, shown(q.gold ?? "–")) },
    { head: "accuracy over time", title: "right of the scorable completions of each fresh group", cell: (q) => spark(q.curve) },
    count("accuracy", (q) => (q.scorable ? q.successes + "/" + q.scorable : "–")),
    count("solved", (q) => (q.completions ? Math.round((100 * q.solved) / q.completions) + " %" : "–"), true),
    { head: "state", cell: (q) => [stateTag(q.state), q.disagree ? [" ", h("span", { class: "tag warn", title: "an audit found its verifiers to disagree" }, "disagree")] : null] },
    count("groups", (q) => number(q.groups), true), count("stored", (q) => number(q.stored), true), count("replays", (q) => number(q.replays)),
    count("uses", (q) => number(q.uses), true), count("regained", (q) => number(q.regained), true), count("observed", (q) => number(q.observed_at), true),
  ], found.rows, { id: "list" });
  made.querySelectorAll("tbody tr").forEach((tr, i) => { tr.dataset.open = state.link("q/" + found.rows[i].id); });
  return made;
}

export function pager(found, go, size = PAGE_SIZE) {
  const last = Math.min(found.start + size, found.total);
  const to = (start) => () => go({ start: String(Math.max(0, start)) });
  return h("div", { class: "row middle tab" },
    h("button", { type: "button", disabled: found.start === 0, onclick: to(0) }, "first"),
    h("button", { type: "button", disabled: found.start === 0, onclick: to(found.start - size) }, "previous"),
    h("span", { class: "muted" }, number(found.start + 1) + "–" + number(last) + " of " + number(found.total)),
    h("button", { type: "button", disabled: last >= found.total, onclick: to(found.start + size) }, "next"),
    h("button", { type: "button", disabled: last >= found.total, onclick: to((Math.ceil(found.total / size) - 1) * size) }, "last"));
}
